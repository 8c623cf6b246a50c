"""Code generator of `vdl.kafka.wire`. Run by developers; a server never imports it.

    python -m vdl.kafka.codegen                      facts/*.json  →  ../wire/*.py (offline)
    python -m vdl.kafka.codegen --check              exit 1 if a committed module is not current
    python -m vdl.kafka.codegen.extract NEW OLD      two kafka-clients jars  →  facts/*.json

`facts/` holds the facts of Kafka's message schemas — fields, types, versions, nullability,
defaults, tags — and none of their text. The generator turns each message into straight-line code,
one function for each distinct wire layout; versions with one layout share a function.
"""
