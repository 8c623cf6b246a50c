"""Validation of librdkafka settings, without creating a client.

Does not depend on the purpose of the settings.
"""

from __future__ import annotations

from collections.abc import Mapping

UNKNOWN = "vdl.is.no.setting"


def unfit(settings: Mapping[str, str]) -> dict[str, str]:
    """Return name → problem. Empty if librdkafka is not installed."""
    try:
        from confluent_kafka import KafkaException, Producer
    except ModuleNotFoundError:
        return {}
    found: dict[str, str] = {}
    for name, value in settings.items():
        try:
            # Settings are parsed in order, and a client is created only after all were valid. The
            # unknown last one prevents that, so nothing that depends on this machine, such as
            # certificate files, is checked.
            Producer({name: value, UNKNOWN: ""})
        except KafkaException as error:
            if UNKNOWN not in str(error):
                found[name] = str(error.args[0].str()).strip()
        except (AttributeError, TypeError, ValueError) as error:
            found[name] = f"cannot be set in a job file: {error}"
    return found
