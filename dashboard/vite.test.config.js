// Makes the unit tests into a file that Node runs.
import { defineConfig } from 'vite';

export default defineConfig({
  build: { ssr: true, outDir: '../target/dashboard-tests', emptyOutDir: true, rollupOptions: { input: ['tests/format.test.ts', 'tests/incidents.test.ts', 'tests/palette.test.ts', 'tests/callers.test.ts', 'tests/tables.test.ts', 'tests/limits.test.ts', 'tests/ruletext.test.ts', 'tests/experiment.test.ts'], output: { entryFileNames: '[name].mjs' } } },
});
