"""What runs inside the sandbox: the standard library only, sent there as text, importing nothing else of this project.

`host` is the process that programs are forked from; `confine` locks such a fork up; `program` runs a response, and
`checker` the tests, each in a fork of its own; `wire` is how those two talk.
"""
