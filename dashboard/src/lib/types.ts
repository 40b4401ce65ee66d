// The shapes of the admin API, as `GET /admin/v1/openapi.json` describes them.

export type Role = 'viewer' | 'editor' | 'admin';

export interface Session {
  name: string;
  role: Role;
  csrf: string | null;
  expires_at: string | null;
  environment?: string;
  editable?: boolean;
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
}

export interface KeyState {
  domain: string;
  source: string;
  cells: Cell[];
  others?: { rule: string; outcome: string; because?: string }[];
  overrides: Override[];
}

export interface RuleExplanation {
  rule: string;
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
  last_seen_ms: number;
  allowed_per_s?: number;
  refused_per_s?: number;
  busy?: number | null;
  store?: string;
  health?: string;
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
}

export interface Stats {
  from: string;
  to: string;
  step_s: number;
  series: Series[];
  decision_p50_us?: Column;
  decision_p99_us?: Column;
  store_p50_us?: Column;
  store_p99_us?: Column;
  nodes?: number;
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
