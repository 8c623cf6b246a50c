"""Messages of the admin plane: `admin.proto`, and what protoc makes of it (`make gen`)."""
