// Runs source_check.py in Pyodide, which is CPython for WebAssembly: for a Python that is not installed here.
//
//     npm install --prefix FOLDER pyodide@314
//     node tests/torch_versions/source_check.mjs FOLDER
//
// That build lacks names of Linux, such as os.eventfd and the module resource, which are listed as problems.
import { resolve } from "node:path";

const { loadPyodide } = await import(resolve(process.argv[2], "node_modules/pyodide/pyodide.mjs"));
const python = await loadPyodide();
python.FS.mkdir("/source");
python.FS.mount(python.FS.filesystems.NODEFS, { root: resolve(import.meta.dirname, "../..") }, "/source");
process.exitCode = python.runPython(`
import runpy
try:
    runpy.run_path("/source/tests/torch_versions/source_check.py", run_name="__main__")
except SystemExit as end:
    code = int(end.code)
code
`);
