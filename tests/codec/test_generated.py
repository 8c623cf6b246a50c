"""The committed code is the generator's output."""

from types import ModuleType

from vdl.kafka.codegen.__main__ import generate, stale
from vdl.kafka.codegen.samples import wire_module
from vdl.kafka.codegen.schema import FACTS, dump, load, load_all
from vdl.kafka.wire import registry


def test_generated_modules_are_current() -> None:
    """`make gen` would change nothing."""
    assert stale() == []


def test_generator_run_twice_gives_the_same_text() -> None:
    """Equal facts give equal text."""
    assert generate() == generate()


def test_facts_files_are_in_the_form_the_extractor_writes() -> None:
    """Reading a facts file and writing it again changes nothing."""
    for path in sorted(FACTS.glob("*.json")):
        assert dump(load(path)) == path.read_text(), path.name


def test_registry_agrees_with_the_modules() -> None:
    """Key, name, versions and first flexible version, for every API."""
    apis = {api.key: api for api in load_all() if api.key >= 0}
    assert set(apis) == set(registry.NAMES) == set(registry.MODULES)
    for key, api in apis.items():
        module = registry.module(key)
        assert isinstance(module, ModuleType)
        assert module is wire_module(api)
        assert key == module.API_KEY
        assert registry.NAMES[key] == module.NAME
        assert registry.KEYS[module.NAME] == key
        assert registry.VERSIONS[key] == (module.MIN_VERSION, module.MAX_VERSION)
        assert registry.FLEXIBLE_FROM[key] == module.FLEXIBLE_FROM


def test_old_versions_that_kafka_4_dropped_are_known() -> None:
    """Such clients still exist: versions come from the older library as well."""
    oldest = {registry.NAMES[key]: first for key, (first, _) in registry.VERSIONS.items()}
    for name in ("Produce", "Fetch", "ListOffsets", "CreateTopics", "OffsetCommit", "OffsetFetch"):
        assert oldest[name] == 0, name
