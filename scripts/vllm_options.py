"""Print the options of `vllm serve` of this interpreter, one a line: for server/logdiff/audit/engine_options.yaml.

Run it with `VLLM_PLUGINS=` where a platform's plug-in can't be loaded.
"""

import importlib

from vllm.utils.argparse_utils import FlexibleArgumentParser

for place in ("launchers", "openai"):
    try:
        module = importlib.import_module(f"vllm.entrypoints.{place}.cli_args")
        break
    except ModuleNotFoundError:
        continue
parser = module.make_arg_parser(FlexibleArgumentParser())
names = {name[2:].replace("-", "_") for action in parser._actions for name in action.option_strings if name[:2] == "--"}
print(*sorted(n for n in names if not (n.startswith("no_") and n[3:] in names) and n != "help"), sep="\n")
