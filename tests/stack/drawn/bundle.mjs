// Makes one script of page.jsx and Grafana's packages: node bundle.mjs FOLDER, with node_modules in FOLDER.
import path from 'node:path';
import {createRequire} from 'node:module';
import {fileURLToPath} from 'node:url';

const [, , folder] = process.argv;
const require = createRequire(path.join(folder, 'package.json'));
const SCROLLBARS = 'react-custom-scrollbars-2';
const scrollbars = {
  name: 'scrollbars',
  setup(build) {
    // Grafana imports its default as bundlers do; by node's rules that default is the whole module.
    const real = require.resolve(SCROLLBARS);
    build.onResolve({filter: new RegExp(`^${SCROLLBARS}$`)}, () => ({path: SCROLLBARS, namespace: 'default-of'}));
    build.onLoad({filter: /.*/, namespace: 'default-of'}, () => ({
      contents: `module.exports = require(${JSON.stringify(real)}).default;`, resolveDir: folder,
    }));
  },
};
await require('esbuild').build({
  entryPoints: [path.join(path.dirname(fileURLToPath(import.meta.url)), 'page.jsx')],
  outfile: path.join(folder, 'bundle.js'), bundle: true, minify: true, format: 'iife', jsx: 'automatic',
  logLevel: 'error', nodePaths: [path.join(folder, 'node_modules')], plugins: [scrollbars],
  define: {'process.env.NODE_ENV': '"production"', global: 'window'},
  loader: {'.svg': 'dataurl', '.woff': 'dataurl', '.woff2': 'dataurl', '.ttf': 'dataurl'},
});
