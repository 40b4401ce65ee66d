// What the sides of an experiment did, and whether they differ by more than chance explains.

export interface Side {
  variant: string;
  allowed: number;
  refused: number;
  shadow_refused: number;
}

export interface Compared {
  /** The refusal rates, in per cent. */
  control: number;
  experiment: number;
  /** Percentage points of the experiment above the control, and how far that may be off, at 95 %. */
  difference: number;
  margin: number;
}

/** Fewer requests on a side say nothing. */
const LEAST = 30;
/** Of a normal distribution, 95 % lies within so many standard deviations. */
const Z = 1.96;

export const requestsOf = (side: Side) => side.allowed + side.refused + side.shadow_refused;
const refusedOf = (side: Side) => side.refused + side.shadow_refused;

/**
 * The difference of two shares with its interval. Requests of one caller are not independent of each other, so the interval is a
 * lower bound of the true one: what it calls chance is chance.
 */
export function compare(sides: Side[]): Compared | null {
  const [control, experiment] = ['control', 'experiment'].map((name) => sides.find((side) => side.variant === name));
  if (!control || !experiment || requestsOf(control) < LEAST || requestsOf(experiment) < LEAST) return null;
  const share = (side: Side) => refusedOf(side) / requestsOf(side);
  const variance = (side: Side) => (share(side) * (1 - share(side))) / requestsOf(side);
  return {
    control: 100 * share(control),
    experiment: 100 * share(experiment),
    difference: 100 * (share(experiment) - share(control)),
    margin: 100 * Z * Math.sqrt(variance(control) + variance(experiment)),
  };
}
