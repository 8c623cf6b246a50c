"""Which settings librdkafka does not take, asked without a client.

Must not know: what the settings are for.
"""

from __future__ import annotations

from collections.abc import Mapping

UNKNOWN = "vdl.is.no.setting"


def unfit(settings: Mapping[str, str]) -> dict[str, str]:
    """Name → what is wrong with it. Nothing where librdkafka is not installed."""
    try:
        from confluent_kafka import KafkaException, Producer
    except ModuleNotFoundError:
        return {}
    found: dict[str, str] = {}
    for name, value in settings.items():
        try:
            # Settings are taken in their order, and a client is made once all were. So none is
            # made, and what depends on this machine, as files of certificates do, is not looked at.
            Producer({name: value, UNKNOWN: ""})
        except KafkaException as error:
            if UNKNOWN not in str(error):
                found[name] = str(error.args[0].str()).strip()
        except (AttributeError, TypeError, ValueError) as error:
            found[name] = f"cannot be set in a file: {error}"
    return found
