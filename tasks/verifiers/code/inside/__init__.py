"""Code that runs inside the sandbox, sent there as text: the standard library only, nothing else of the project.

`host` is the process that programs are forked from; `confine` locks such a fork up; `program` runs a response, and
`checker` the tests, each in a fork of its own; `wire` is the protocol between those two, and `proxies` its exceptions.
"""
