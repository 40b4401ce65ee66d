// The shapes of the admin API, as `GET /admin/v1/openapi.json` describes them.

export type Role = 'viewer' | 'editor' | 'admin';

export interface Session {
  name: string;
  role: Role;
  csrf: string | null;
  expires_at: string | null;
  environment?: string;
  editable?: boolean;
  /** Where this node answers requests, by protocol. */
  addresses?: Record<string, string>;
}

export interface Diagnostic {
  severity: 'error' | 'warning';
  file: string;
  line: number;
  column: number;
  message: string;
  hint: string;
}

export interface Limit {
  name: string;
  /** The tier, or the experiment, that has it; empty for everybody's. */
  of?: string;
  algorithm: string;
  limit: number;
  window_ms: number | null;
}

export interface Rule {
  domain: string;
  name: string;
  mode: 'enforce' | 'shadow' | 'quota';
  key: string[];
  limits: Limit[];
  coordination: string;
  on_store_failure: string;
  priority: string | null;
  line: number | null;
  description?: string | null;
  owner?: string | null;
  enabled?: boolean;
  rollout?: string | number | null;
  experiment?: unknown;
}

export interface RuleDocument {
  domain: string;
  text: string;
}

export interface Rules {
  version: number;
  source: 'database' | 'file';
  editable: boolean;
  edit_at?: string[] | null;
  documents: RuleDocument[];
  rules: Rule[];
  warnings?: Diagnostic[];
}

export interface RuleText {
  domain: string;
  name: string;
  text: string;
  version: number;
  rule: Rule;
  experiment?: { variant: string; allowed: number; refused: number; shadow_refused: number }[];
  experiment_of?: 'fleet_last_day' | 'node_since_start';
}

export interface Diff {
  from: number | null;
  to: number | null;
  documents: { domain: string; change: 'added' | 'removed' | 'changed'; unified: string }[];
  rules: { domain: string; rule: string; change: 'added' | 'removed' | 'changed' }[];
}

export interface Validated {
  valid: boolean;
  diagnostics: Diagnostic[];
  rules: Rule[];
  diff: Diff;
}

export interface Version {
  number: number;
  parent: number | null;
  author: string;
  at: string;
  reason: string;
  domains: string[];
  /** Which rules it changed, where that was asked for. */
  rules?: Diff['rules'];
}

export interface Published {
  version: number;
  warnings: Diagnostic[];
  diff: Diff;
}

export interface Cell {
  rule: string;
  limit_name: string;
  algorithm: string;
  mode: string;
  limit: number;
  window_ms?: number | null;
  used: number;
  remaining: number;
  reset_after_ms: number;
  retry_after_ms: number | null;
  refused: boolean;
  from?: string;
  key: string[];
}

export interface Override {
  id: string;
  domain: string;
  rule: string | null;
  when: Record<string, string>;
  action: 'limits' | 'ban' | 'unlimited';
  limits: unknown[];
  until: string | null;
  reason: string;
  author: string;
  at: string;
  warning?: string;
  /** In the answer to a change: from which revision of overrides a node has it. */
  revision?: number | null;
}

export interface KeyState {
  domain: string;
  source: string;
  cells: Cell[];
  others?: RuleExplanation[];
  overrides: Override[];
}

export interface RuleExplanation {
  rule: string;
  /** The words of `tidegate explain`. */
  says: string;
  outcome: 'counts' | 'unlimited' | 'banned' | 'key_missing' | 'replaced' | 'not_matched';
  because?: string;
  by?: string;
  attribute?: string;
  then?: string;
  mode?: string;
  key?: string[];
  limits?: { name: string; algorithm: string; limit: number; window?: string | null }[];
  from?: string;
}

export interface Node {
  id: string;
  name: string;
  release: string;
  version: number;
  overrides: number;
  error?: string | null;
  started_at?: string;
  this: boolean;
  /** Whether it has the database: changes are made there. */
  leads?: boolean;
  last_seen_ms: number;
  clock_ahead_ms?: number | null;
  allowed_per_s?: number;
  refused_per_s?: number;
  busy?: number | null;
  store?: string;
  health?: string;
  lost?: boolean;
  /** The shared store does not answer, so this is what was last heard of it. */
  unknown?: boolean;
}

export interface Nodes {
  version: number;
  overrides: number;
  nodes: Node[];
  converged: boolean;
  warnings?: string[];
}

export interface Stores {
  kind: 'memory' | 'redis';
  health: string;
  nodes: { endpoint: string; breaker: 'closed' | 'open' | 'half_open' }[];
  keys: number;
  bytes: number;
  fleet?: number;
  debts?: number;
  orphans?: number;
  database: { kind: 'sqlite' | 'postgres' | 'none'; healthy: boolean; error?: string | null };
}

export type Column = (number | null)[];

export interface Series {
  domain: string;
  rule: string;
  allowed: Column;
  refused: Column;
  shadow_refused: Column;
  fallback: Column;
  /** Only of requests, not of a rule. */
  shed?: Column;
}

export interface Stats {
  from: string;
  to: string;
  step_s: number;
  series: Series[];
  total: Series;
  rules: number;
  decision_p50_us?: Column;
  decision_p99_us?: Column;
  store_p50_us?: Column;
  store_p99_us?: Column;
  nodes?: number;
  partial?: boolean[];
  versions?: Version[];
}

export interface AuditEntry {
  id: number;
  at: string;
  actor: string;
  role: string;
  action: string;
  target: string;
  detail: Record<string, unknown>;
}

export interface Token {
  id: string;
  name: string;
  role: Role;
  created_at: string;
  created_by?: string;
  expires_at: string | null;
  source?: 'database' | 'config';
  token?: string;
}

export interface SignedIn {
  id: string;
  name: string;
  role: Role;
  /** What it belongs to and ends with; a link of `tidegate login` belongs to no token. */
  through: 'token' | 'config' | 'link';
  token: string | null;
  from: string;
  created_at: string;
  expires_at: string | null;
  this: boolean;
}

export interface Alert {
  fingerprint: string;
  kind: string;
  subject: string;
  severity: 'info' | 'warning' | 'critical';
  summary: string;
  next: string;
  link: string;
  since_s: number;
  ended_s: number | null;
  silenced: boolean;
  unknown_since_s?: number;
}

export interface Alerts {
  active: Alert[];
  resolved: Alert[];
}

export interface Silence {
  id: number;
  kind: string | null;
  subject: string | null;
  until_s: number;
  reason: string;
  author: string;
}

export interface Decision {
  time: string;
  time_us: number;
  domain: string;
  rule: string | null;
  verdict: 'admitted' | 'refused';
  limit?: number;
  remaining?: number;
  retry_after_ms?: number;
  shadow_refused?: string[];
  source: string;
  node: string;
  version: number;
  n: number;
  cost: number;
  key: string[];
  attributes: Record<string, string>;
}

export interface Decisions {
  decisions: Decision[];
  /** How many entries match, and how many requests they represent. */
  matched: number;
  represents: number;
  oldest: string | null;
  missing?: MissingNode[];
}

/** A node that did not answer, and why: what it knows is not in the answer. */
export interface MissingNode {
  node: string;
  why: string;
}

export interface TopCaller {
  key: [string, string][];
  count: number;
  error: number;
  left_permille: number | null;
  left_ago_us?: number;
}

export interface TopCallers {
  rules: { domain: string; rule: string; callers: TopCaller[]; total: number; most_error: number }[];
  missing?: MissingNode[];
}

/** A number under the new rules, and under those compared with. */
export interface Counts {
  now: number;
  before: number | null;
}

export interface Timeline {
  start_s: number;
  width_s: number;
  buckets: [number, number, number][];
}

export interface CallerReport {
  caller: string;
  requests: number;
  refused: Counts;
  first_refused_us: number | null;
}

export interface Peak {
  value: number;
  count: number;
}

export interface LimitReport {
  limit: string;
  algorithm: string;
  quota: number;
  window_us: number | null;
  peaks: Peak[];
  /** What each of some limits would have touched, from 0 to the largest peak. */
  touched: Touched[];
  suggestion: { limit: number; confidence_percent: number } | null;
}

export interface Touched {
  limit: number;
  callers: number;
  requests: number;
}

/** What callers ask of a limit, over all nodes. */
export interface LimitDemand extends LimitReport {
  since: string;
  requests: number;
  callers: number;
  sampled_one_in: number;
  /** Requests of callers that have limits of their own. */
  left_out?: number;
  suggestion: { limit: number; confidence_percent: number; callers_above: number; requests_above: number; busiest: { key: [string, string][]; peak: number }[] } | null;
}

export interface Demand {
  rules: { domain: string; rule: string; shadow: boolean; limits: LimitDemand[] }[];
  missing?: MissingNode[];
}

export interface RuleReport {
  domain: string;
  rule: string;
  change: 'only' | 'both' | 'added' | 'removed';
  shadow: boolean;
  key: string[];
  requests: number;
  skipped: number;
  /** Nobody can tell what it would have done. */
  unknown: boolean;
  refused: Counts;
  callers: number;
  callers_refused: Counts;
  callers_newly_refused: number | null;
  sampled_one_in: number;
  hit_first: CallerReport[];
  hit_most: CallerReport[];
  timeline: Timeline;
  limits: LimitReport[];
}

/** What a replay found. */
export interface Report {
  format: string;
  lines: { read: number; played: number; bad: number; unknown_domain: number; out_of_order: number; examples: { line: number; why: string; text: string }[] };
  from_s: number;
  to_s: number;
  requests: number;
  refused: Counts;
  refused_in_log: number | null;
  before_otherwise: { admitted_now: number; refused_now: number } | null;
  /** Why the numbers are an estimate, and why some are unknown. */
  estimate: string | null;
  unknown: string | null;
  newly_refused: number | null;
  newly_admitted: number | null;
  timeline: Timeline;
  rules: RuleReport[];
  notes: string[];
  hidden_attributes: string[];
  missing?: MissingNode[];
  html?: string;
}

/** Something that happened, as a vertical line in a chart. */
export interface Mark {
  at: number;
  label: string;
  text: string;
  colour: string;
}
