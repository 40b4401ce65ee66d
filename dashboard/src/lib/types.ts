// The shapes of the admin API: `npm run types` makes shapes.ts from the OpenAPI description. Only what the API does not have is
// written here.

import type { Override } from './shapes';

export type * from './shapes';

/** Something that happened, as a vertical line in a chart. */
export interface Mark {
  at: number;
  label: string;
  text: string;
  colour: string;
}

/** What is about to be done to a caller. */
export type Asking = { what: 'reset' } | { what: 'override'; action: Override['action']; until?: string } | { what: 'lift'; override: Override } | { what: 'restore'; override: Override };

/** What was just changed, and the revision of overrides from which every node has it. */
export interface Changed {
  what: string;
  revision: number | null;
  /** What takes it back; a reset has nothing that does. */
  undo: Asking | null;
}
