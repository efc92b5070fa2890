"""Files and directories that a benchmark writes once and finds again in later runs."""

import shutil


def once(path, write):
    """`path`, which write(partial) makes unless it is there; partial gets its name when it is whole."""
    if not path.exists():
        partial = path.with_name(f"{path.name}.part")
        if partial.is_dir():
            shutil.rmtree(partial)  # of a run that ended too soon
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        partial.rename(path)
    return path
