"""The Kafka wire codec: one generated module per API, `registry`, `header`, and a small runtime.

A module `vdl.kafka.wire.<api>` has a dataclass per message and per nested struct, each with the
union of all versions, and four functions: `decode_request(view, version)`, `encode_request(message,
version)`, `decode_response`, `encode_response`. Encoding returns a list of buffers to be sent one
after another; decoding takes a memoryview.

Rules of the decoded form:
- `records` are a view of the input, valid as long as the frame. Everything else is copied out.
- `uuid` is 16 bytes (`ZERO_UUID` for none); an error code is a plain `int`; text is `str`.
- A field that the version does not have holds its default. A tagged struct that was not sent is
  None.
"""
