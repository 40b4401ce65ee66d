import { vitePreprocess } from '@sveltejs/vite-plugin-svelte';

export default {
  preprocess: vitePreprocess(),
  compilerOptions: {
    // Regions that scroll must take the focus, or the keyboard cannot scroll them.
    warningFilter: (warning) => warning.code !== 'a11y_no_noninteractive_tabindex',
  },
};
