"""Stands in for the build backend that llama-cpp-python names, for `pip download` alone (scripts/setup.sh).

pip wants a package's metadata before it hands the archive over. The real backend would be fetched unpinned and would
take most of a minute; we unpack one folder and build nothing.
"""
import pathlib

NAME, VERSION = "llama_cpp_python", "0.3.36"


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = pathlib.Path(metadata_directory) / f"{NAME}-{VERSION}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n")
    return folder.name
