// Draws pages in a headless Chromium: node draw.mjs FOLDER, with bundle.js and node_modules in FOLDER. Reads a job a line
// from its input ({page: a file, width, picture: a file or null}); writes a line with what it measured for each.
import fs from 'node:fs';
import path from 'node:path';
import readline from 'node:readline';
import {createRequire} from 'node:module';

const [, , folder, chromium] = process.argv;
const puppeteer = createRequire(path.join(folder, 'package.json'))('puppeteer-core');
const ORIGIN = 'http://drawn.test/';
const TYPES = {'.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml'};
const HTML = `<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="/bundle.css"><style>body{margin:0}
p{position:fixed;visibility:hidden;font:400 12px Inter}b{font-weight:500}</style>
<p>Axes are <b>measured</b></p><div id="root"></div><script>window.__grafana_public_path__ = "/public/";
window.grafanaBootData = {settings: {featureToggles: {}}, user: {}};</script><script src="/bundle.js"></script>`;

function answer(url) {
  const name = new URL(url).pathname;
  if (name === '/') return {contentType: 'text/html', body: HTML};
  const file = name.startsWith('/public/')
    ? path.join(folder, 'node_modules/@grafana/ui/dist/public', name.slice(8).replace(/^build\//, ''))
    : path.join(folder, path.basename(name));
  return fs.existsSync(file)
    ? {contentType: TYPES[path.extname(file)] ?? 'application/octet-stream', body: fs.readFileSync(file)}
    : {status: 404, body: ''};
}

const browser = await puppeteer.launch({executablePath: chromium, args: ['--no-sandbox', '--disable-gpu'], headless: true});
try {
  const page = await browser.newPage();
  page.on('pageerror', (error) => process.stderr.write(`${error.stack ?? error}\n`));
  await page.setRequestInterception(true);
  page.on('request', (request) => request.url().startsWith(ORIGIN) ? request.respond(answer(request.url())) : request.continue());
  await page.setViewport({width: 1600, height: 1000});
  await page.goto(ORIGIN);
  // Grafana keeps the widths of texts that it measured, which are those of another font while its own is not there.
  await page.waitForFunction(() => ['400 12px Inter', '500 12px Inter'].every((font) => document.fonts.check(font)), {polling: 50});
  for await (const line of readline.createInterface({input: process.stdin})) {
    const job = JSON.parse(line);
    await page.setViewport({width: job.width, height: 1000});
    const height = await page.evaluate((given, width) => window.draw(given, width), JSON.parse(fs.readFileSync(job.page)), job.width);
    if (job.picture) {
      await page.setViewport({width: job.width, height: Math.min(height, job.height ?? height)});
      await new Promise((resolve) => setTimeout(resolve, 500));
      await page.screenshot({path: job.picture});
    }
    process.stdout.write(`${JSON.stringify(await page.evaluate(() => window.measured()))}\n`);
  }
} finally {
  await browser.close();
}
