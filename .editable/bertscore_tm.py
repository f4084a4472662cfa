"""Load the package from the checkout in an editable install.

Only this folder is on the import path then, so that ``tests``, ``examples``, ``losses`` and ``callbacks`` do not
shadow folders of other projects.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_folder = Path(__file__).resolve().parents[1] / "bertscore_tm"
_spec = spec_from_file_location(__name__, _folder / "__init__.py", submodule_search_locations=[str(_folder)])
assert _spec is not None
assert _spec.loader is not None
# The import system returns what is in sys.modules in the end.
sys.modules[__name__] = module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[__name__])
