// draw.cjs DASHBOARD PROMETHEUS FROM TO SCRAPE PICTURE: draws the dashboard in that file with the data of the Prometheus at that address, between two
// times in milliseconds, where it scrapes each SCRAPE milliseconds. Fails where a panel cannot be drawn or has no data.
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const esbuild = require('esbuild');
const puppeteer = require('puppeteer-core');

const [dashboard, prometheus, from, to, scrape, picture] = process.argv.slice(2);
const modules = process.env.NODE_PATH;
const files = {
  '/': Buffer.from(`<!doctype html><meta charset="utf-8"><title>dashboard</title><link rel="icon" href="data:,"><link rel="stylesheet" href="/page.css">
<style>body { margin: 0; overflow: auto }</style><div id="root"></div><script src="/page.js"></script>`),
  '/dashboard.json': fs.readFileSync(dashboard),
};
// Where Grafana's components look for what they do not bring along: fonts, and icons (below).
for (const [name, weight] of Object.entries({ Regular: 400, Medium: 500 })) {
  files[`/public/fonts/inter/Inter-${name}.woff2`] = fs.readFileSync(`${modules}/@fontsource/inter/files/inter-latin-${weight}-normal.woff2`);
}
const types = { '': 'text/html', '.css': 'text/css', '.js': 'text/javascript', '.json': 'application/json', '.svg': 'image/svg+xml', '.woff2': 'font/woff2' };

// bundle makes the page of its source.
async function bundle() {
  const built = await esbuild.build({
    entryPoints: [path.join(__dirname, 'page.jsx')], bundle: true, write: false, outdir: '/', jsx: 'automatic', logLevel: 'warning', nodePaths: [modules],
    define: { 'process.env.NODE_ENV': '"production"' }, loader: { '.ttf': 'empty' },
  });
  for (const f of built.outputFiles) files[f.path] = f.contents;
}

// serve answers the page: its files, Grafana's icons, and the questions to Prometheus, so that all comes from one origin.
function serve(request, response) {
  const { pathname } = new URL(request.url, 'http://page');
  if (pathname.startsWith('/api/')) {
    http.get(prometheus + request.url, (answer) => {
      response.writeHead(answer.statusCode, { 'content-type': answer.headers['content-type'] });
      answer.pipe(response);
    }).on('error', (error) => response.writeHead(502).end(JSON.stringify({ status: 'error', error: String(error) })));
    return;
  }
  let body = files[pathname];
  const icon = pathname.match(/^\/public\/build\/(img\/icons\/\w+\/[\w-]+\.svg)$/);
  if (icon) body = fs.readFileSync(`${modules}/@grafana/ui/dist/public/${icon[1]}`);
  response.writeHead(body ? 200 : 404, { 'content-type': types[path.extname(pathname)] ?? 'text/plain' }).end(body);
}

async function main() {
  await bundle();
  const server = http.createServer(serve).listen(0, '127.0.0.1');
  await new Promise((listens) => server.on('listening', listens));
  const browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1', '--font-render-hinting=none'],
  });
  try {
    const page = await browser.newPage();
    const said = [];
    page.on('console', (m) => m.type() === 'error' && said.push(`${m.text()} ${m.location().url}`));
    page.on('pageerror', (e) => said.push(e.stack));
    await page.setViewport({ width: 1600, height: 1000 });
    await page.goto(`http://127.0.0.1:${server.address().port}/?` + new URLSearchParams({ from, to, scrape }));
    const standing = () => page.$$eval('.panel', (all) => all.map((p) => [p.dataset.state, p.innerText.replace(/\s+/g, ' ')]));
    try {
      await page.waitForFunction(() => document.querySelector('.panel') && !document.querySelector('.panel:not([data-state])'), { timeout: 60_000 });
    } catch (error) {
      said.push(`the dashboard is not drawn: ${error.message}`);
    }
    for (const [state, text] of await standing()) {
      if (state !== 'drawn') said.push(`${state ?? 'not drawn'}: ${text}`);
    }
    await page.screenshot({ path: picture, fullPage: true });
    if (said.length) throw new Error(said.join('\n'));
  } finally {
    await browser.close();
    server.close();
  }
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
