"""Code that runs inside the sandbox. It is sent there as text and uses only the standard library.

`host` is the process that forks programs; `confine` locks up such a fork; `program` runs a response, and
`checker` the tests, each in its own fork; `wire` is the protocol between these two, and `proxies` its exceptions.
"""
