// The shapes of the admin API: `npm run types` makes shapes.ts from the OpenAPI description. Only what the API does not have is
// written here.

export type * from './shapes';

/** Something that happened, as a vertical line in a chart. */
export interface Mark {
  at: number;
  label: string;
  text: string;
  colour: string;
}
