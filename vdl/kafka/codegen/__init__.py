"""The code generator of `vdl.kafka.wire`. Run by developers; a server never imports it.

    python -m vdl.kafka.codegen                      facts/*.json  →  ../wire/*.py (offline)
    python -m vdl.kafka.codegen --check              exit 1 if a committed module is not current
    python -m vdl.kafka.codegen.extract NEW OLD      two kafka-clients jars  →  facts/*.json

`facts/` holds what Kafka's message schemas state — fields, types, versions, nullability, defaults,
tags — and no text of theirs. The generator turns each message into straight-line code, one function
for every distinct layout on the wire; versions with one layout share a function.
"""
