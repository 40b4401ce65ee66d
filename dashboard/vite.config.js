import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

// The built files are committed and compiled into the binary, so that `cargo build` needs no Node. Their names are
// fixed: what changed shows in a diff by its name, and the server tells browsers by ETag.
export default defineConfig({
  plugins: [svelte()],
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
