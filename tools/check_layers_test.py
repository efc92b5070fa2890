"""check_layers on small trees: what the house allows passes, each kind of violation is named with its file and line."""

import pathlib
import subprocess
import sys

import pytest

CHECK = pathlib.Path(__file__).with_name("check_layers")


def run(root: pathlib.Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """files: by their path in plimsoll/, or with "/" before it in the project."""
    (root / "plimsoll").mkdir()
    for name, text in files.items():
        path = root / name[1:] if name.startswith("/") else root / "plimsoll" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True, check=False)


def test_this_project_follows_its_house() -> None:
    result = subprocess.run([sys.executable, CHECK], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "layers: ok\n")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("watch/slots.h", '#include "plimsoll/format/format.h"\n'),
        ("nn/linear.h", '#include <torch/nn/module.h>\n#include "plimsoll/kernels/gemm/gemm.h"\n'),
        ("kernels/norm/norm.cpp", '#include "plimsoll/kernels/simd/vector.h"\n#include "plimsoll/kernels/scale_view.h"\n'),
        ("kernels/norm/norm_test.cpp", '#include "plimsoll/kernels/quantize/quantize.h"\n#include "plimsoll/watch/slots.h"\n'),
        ("ops/fused/a.h", '#include "plimsoll/ops/tensor/gemm.h"\n#include "plimsoll/ops/scaling/operand_slot.h"\n'),
        ("ops/norm/norm_test.cpp", '#include "plimsoll/ops/linear/linear.h"\n'),
        ("watch/CMakeLists.txt", "plimsoll_library(watch SOURCES a.cpp LINKS Plimsoll::format)\n"),
        ("kernels/norm/CMakeLists.txt", "plimsoll_test(norm SOURCES a_test.cpp LINKS Plimsoll::kernels_quantize)\n"),
        ("/bench/step.cpp", '#include <torch/torch.h>\n#include "plimsoll/app/train/train.h"\n'),
        (
            "bind/t5.cpp",
            '#include "plimsoll/nn/linear.h"\n#include "plimsoll/bind/layer.h"\n#include "plimsoll/models/t5/load.h"\n',
        ),
        ("/python/tests/reference.cpp", '#include <torch/torch.h>\n#include "plimsoll/models/gpt/model.h"\n'),
        ("/python/plimsoll/shard/a.py", "from plimsoll import _scope\nimport plimsoll.amp.grad_scaler\nimport torch.nn\n"),
        ("/python/plimsoll/amp/a.py", "if TYPE_CHECKING:\n    from plimsoll.shard import OSS\n"),
        ("/python/plimsoll/watch.py", "import plimsoll.shard\n"),
        ("ops/torch_internals/a.cpp", "#include <torch/csrc/autograd/engine.h>\nengine.queue_callback(f);\n"),
        ("ops/norm/a.h", '#include "plimsoll/ops/torch_internals/attached.h"\n'),
        ("shard/communicator/a.cpp", "#include <torch/csrc/distributed/c10d/Store.hpp>\n"),
        ("optim/a.cpp", "#include <torch/csrc/autograd/custom_function.h>\nseen = x._version();  // at::_foreach\n"),
        ("optim/a_test.cpp", "at::_fused_adamw_(x);\n"),
        ("/python/plimsoll/_torch_internals.py", "import torch\nkey = torch._C._parse_dispatch_key\n"),
        ("/python/plimsoll/amp/a.py", "import torch\nname = torch.nn.Linear.__name__ + module._parameters\n"),
    ],
)
def test_what_the_house_allows_passes(tmp_path: pathlib.Path, name: str, text: str) -> None:
    result = run(tmp_path, {name: text})
    assert (result.returncode, result.stdout) == (0, "layers: ok\n")


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("format/a.h", '#include "plimsoll/runtime/cpu.h"\n', "a.h:1: plimsoll/runtime/cpu.h: format may include format"),
        (
            "ops/a.cpp",
            '\n\n#include "plimsoll/models/gpt/model.h"\n',
            "a.cpp:3: plimsoll/models/gpt/model.h: ops may include format, runtime,",
        ),
        ("optim/a.h", '#  include "plimsoll/models/gpt/model.h"\n', "a.h:1: plimsoll/models/gpt/model.h: optim may include"),
        ("kernels/gemm/gemm.inc", "#include <ATen/ATen.h>\n", "gemm.inc:1: ATen/ATen.h: torch is allowed in ops"),
        ("watch/a_test.cpp", "#include <torch/torch.h>\n", "a_test.cpp:1: torch/torch.h: torch is allowed in ops"),
        ("ops/a.cu", "#include <c10/util/Half.h>\n", "a.cu:1: c10/util/Half.h: CUDA files never include torch"),
        (
            "watch/a_test.cpp",
            '#include "plimsoll/ops/linear/linear.h"\n',
            "a_test.cpp:1: plimsoll/ops/linear/linear.h: watch may",
        ),
        ("ops/a.h", '#include "linear.h"\n', "a.h:1: linear.h: expected a path from the root"),
        ("kernels/norm/a.h", '#include "plimsoll/kernels/gemm/gemm.h"\n', "a.h:1: plimsoll/kernels/gemm/gemm.h: kernels/norm"),
        (
            "ops/norm/a.h",
            '#include "plimsoll/ops/linear/linear.h"\n',
            "a.h:1: plimsoll/ops/linear/linear.h: ops/norm may use ops/dispatcher,",
        ),
        (
            "shard/plan/a.h",
            '#include "plimsoll/shard/engine/sharded_unit.h"\n',
            "engine/sharded_unit.h: shard/plan may use shard/average",
        ),
        ("vision/a.h", "", "a.h:1: vision: the house has no such folder"),
        (
            "/bench/step.cpp",
            '#include "plimsoll/cli/main.h"\n',
            "bench/step.cpp:1: plimsoll/cli/main.h: bench may include format,",
        ),
        (
            "bind/a.cpp",
            '#include "plimsoll/cli/table.h"\n',
            "bind/a.cpp:1: plimsoll/cli/table.h: bind may include format,",
        ),
        (
            "/python/tests/a.cpp",
            '#include "plimsoll/cli/table.h"\n',
            "a.cpp:1: plimsoll/cli/table.h: python may include format,",
        ),
        ("/python/tests/a.cpp", '#include "layer.h"\n', 'layer.h: expected a path from the root, "plimsoll/..." or "python/..."'),
        (
            "/python/plimsoll/amp/a.py",
            "\nimport plimsoll.shard.oss\n",
            "a.py:2: plimsoll.shard.oss: amp may import amp, plimsoll._*",
        ),
        (
            "/python/plimsoll/convert/a.py",
            "def f():\n    from plimsoll import shard\n",
            "a.py:2: plimsoll.shard: convert may import",
        ),
        ("/python/plimsoll/_a.py", "from plimsoll.amp import autocast\n", "_a.py:1: plimsoll.amp: the package's own modules may"),
        ("/python/plimsoll/serve/a.py", "", "a.py:1: serve: the package has no such part"),
        (
            "shard/engine/a.cpp",
            "\nengine.queue_callback(f);\n",
            "a.cpp:2: queue_callback: what torch does not promise is used in plimsoll/ops/torch_internals alone",
        ),
        ("ops/a.h", "struct Kept : c10::BackendMeta {};\n", "a.h:1: BackendMeta: what torch does not promise"),
        ("amp/a.cpp", "x = grad._values();\n", "a.cpp:1: ._values(: what torch does not promise"),
        ("ops/a.cpp", "#include <torch/csrc/autograd/engine.h>\n", "a.cpp:1: torch/csrc/autograd/engine.h: what torch does not"),
        (
            "shard/engine/a.h",
            "#include <torch/csrc/distributed/c10d/Work.hpp>\n",
            "a.h:1: torch/csrc/distributed/c10d/Work.hpp: what torch does not",
        ),
        (
            "/python/plimsoll/amp/a.py",
            "import torch\n\n\ndef f(x):\n    return torch._C._functorch.get_unwrapped(x)\n",
            "a.py:5: torch._C._functorch.get_unwrapped: what torch does not promise is used in python/plimsoll/_torch_internals.py",
        ),
        (
            "/python/plimsoll/amp/a.py",
            "from torch.utils._pytree import tree_map\n",
            "a.py:1: torch.utils._pytree.tree_map: what torch does not",
        ),
        (
            "/python/plimsoll/watch.py",
            "from torch.utils import checkpoint as c\nc._generator = None\n",
            "watch.py:2: c._generator: what torch does not",
        ),
        ("io/CMakeLists.txt", "plimsoll_library(io\n  LINKS torch\n  Plimsoll::nn)\n", "CMakeLists.txt:3: Plimsoll::nn: io may"),
        ("watch/CMakeLists.txt", "plimsoll_library(watch LINKS plimsoll_torch)\n", "plimsoll_torch: torch is allowed in ops"),
        (
            "kernels/norm/CMakeLists.txt",
            "# Plimsoll::ops\ntarget_link_libraries(plimsoll_kernels_norm PUBLIC Plimsoll::kernels_gemm)\n",
            "CMakeLists.txt:2: Plimsoll::kernels_gemm: kernels/norm may use kernels/cuda, kernels/norm, kernels/simd",
        ),
    ],
)
def test_each_violation_is_named(tmp_path: pathlib.Path, name: str, text: str, fault: str) -> None:
    result = run(tmp_path, {name: text})
    assert result.returncode == 1
    assert fault in result.stdout
    assert result.stdout.endswith("layers: 1 violations\n")


def test_a_wrong_root_is_one_line(tmp_path: pathlib.Path) -> None:
    result = subprocess.run([sys.executable, CHECK, tmp_path], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == f"check_layers: expected a folder plimsoll in {tmp_path}\n"
