// Light, dark, or as the system has it.

type Theme = 'system' | 'light' | 'dark';
const KEY = 'tidegate-theme';

function stored(): Theme {
  const value = localStorage.getItem(KEY);
  return value === 'light' || value === 'dark' ? value : 'system';
}

const system = matchMedia('(prefers-color-scheme: dark)');
const current = $state({ theme: stored(), dark: false });

export function applyTheme() {
  current.dark = current.theme === 'dark' || (current.theme === 'system' && system.matches);
  document.documentElement.dataset.theme = current.dark ? 'dark' : 'light';
}

system.addEventListener('change', applyTheme);

export const theme = () => current.theme;
export const isDark = () => current.dark;

export function nextTheme() {
  const order: Theme[] = ['system', 'light', 'dark'];
  current.theme = order[(order.indexOf(current.theme) + 1) % order.length]!;
  localStorage.setItem(KEY, current.theme);
  applyTheme();
}
