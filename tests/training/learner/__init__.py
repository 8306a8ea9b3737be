"""A package, because only then do fixtures of scope "package" end with the tests of this folder."""
