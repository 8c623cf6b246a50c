"""The codec in both directions and every version, for clients of tests.

`vdl.kafka.wire` has what a server and VDL's own clients need. The client's direction of the other
versions is generated here, from the same facts by the same generator, on first use.
"""

from __future__ import annotations

import sys
from functools import cache, partial
from types import ModuleType

from vdl.kafka.client import KafkaClient
from vdl.kafka.codegen.module import module_source
from vdl.kafka.codegen.samples import wire_module
from vdl.kafka.codegen.schema import FACTS, Api, load
from vdl.kafka.wire import registry


@cache
def codec(api_key: int) -> ModuleType:
    """Return the codec of an API in both directions and every version.

    The server's direction and the messages are the product's own. Raise KeyError if there is no
    such API.
    """
    api = load(FACTS / f"{registry.MODULES[api_key]}.json")
    product = wire_module(api)
    found = ModuleType(f"tests.wire.{registry.MODULES[api_key]}")
    sys.modules[found.__name__] = found  # dataclasses look their module up
    exec(module_source(api, has_all=True), found.__dict__)  # our own generator's text
    for name, value in vars(product).items():
        if isinstance(value, type) or name in ("decode_request", "encode_response"):
            setattr(found, name, value)
    return found


def complete(api: Api) -> ModuleType:
    """Return `codec` of an API, or the codec of a message that is embedded in others."""
    return codec(api.key) if api.key >= 0 else wire_module(api)


def codec_of(product: ModuleType) -> ModuleType:
    """Return `codec` of the API that a module of `vdl.kafka.wire` implements."""
    return codec(product.API_KEY)


AnyApiClient = partial(KafkaClient, module=codec)
"""A `KafkaClient` for every API; it uses the newest version that the server offers."""
