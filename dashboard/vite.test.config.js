// Makes the unit tests into a file that Node runs.
import { readdirSync } from 'node:fs';
import { defineConfig } from 'vite';
import { ruleFieldsPlugin } from './rule-fields.js';

const input = readdirSync(new URL('tests', import.meta.url)).filter((name) => name.endsWith('.test.ts')).map((name) => `tests/${name}`);

export default defineConfig({
  plugins: [ruleFieldsPlugin],
  build: { ssr: true, outDir: '../target/dashboard-tests', emptyOutDir: true, rollupOptions: { input, output: { entryFileNames: '[name].mjs' } } },
});
