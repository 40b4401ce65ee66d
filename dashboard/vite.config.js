import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import zopfli from '@gfx/zopfli';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';
import { ruleFieldsPlugin } from './rule-fields.js';

/** Each file beside its packed self: the server has nothing to do but to choose. Zopfli takes seconds, and saves a twentieth. */
const packed = {
  name: 'packed',
  async writeBundle({ dir }, bundle) {
    for (const name of [...Object.keys(bundle), 'favicon.svg']) writeFileSync(join(dir, `${name}.gz`), await zopfli.gzipAsync(readFileSync(join(dir, name)), { numiterations: 15 }));
  },
};

// The built files are committed and compiled into the binary, so that `cargo build` needs no Node. Their names are
// fixed: what changed shows in a diff by its name, and the server tells browsers by ETag.
export default defineConfig({
  plugins: [svelte(), ruleFieldsPlugin, packed],
  base: './',
  build: {
    outDir: '../crates/tidegate-admin/dashboard',
    emptyOutDir: true,
    target: 'es2022',
    modulePreload: false,
    rollupOptions: {
      output: {
        entryFileNames: 'assets/app.js',
        chunkFileNames: 'assets/[name].js',
        assetFileNames: 'assets/[name][extname]',
      },
    },
  },
  server: { proxy: { '/admin': 'http://127.0.0.1:8082' } },
});
