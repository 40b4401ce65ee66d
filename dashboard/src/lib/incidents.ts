// Alerts of one cause are one incident: what broke, what it affects, what still works, what to do. An operator at night acts on
// causes, not on the list of their symptoms.

import { kindInWords } from './alerts';
import { plural } from './format';
import type { Alert, Nodes, Rules } from './types';

export interface Incident {
  id: string;
  severity: Alert['severity'];
  title: string;
  since_s: number;
  ended_s: number | null;
  /** What it does to requests, in words; empty where only the alerts say. */
  affected: string[];
  next: string;
  alerts: Alert[];
}

/** Of several alerts of one cause, the first of these names it. */
export const FIRST = ['store_down', 'breaker_open', 'overload', 'store_slow', 'fallback', 'store_evicts', 'store_memory', 'spent_evicted', 'key_cardinality', 'node_overload', 'publish_failed', 'reload_failed', 'version_skew', 'certificate_ends', 'refusal_spike', 'traffic_spike', 'traffic_drop', 'new_top_caller', 'spread_caller', 'shadow_would_refuse'];

const TITLES: Record<string, string> = {
  store_down: 'The store does not answer',
  breaker_open: 'The store does not answer',
  overload: 'The store is too busy',
  store_slow: 'The store is slow',
  fallback: 'Nodes decide without the store',
  store_evicts: 'The store evicts counters',
  store_memory: 'The store runs out of memory',
  node_overload: 'All cores are busy',
  publish_failed: 'Rules cannot be published',
  reload_failed: 'Rules cannot be loaded',
  version_skew: 'Nodes run different rules',
};

const RANK = { critical: 0, warning: 1, info: 2 } as const;
/** Alerts of one cause that began this close together are one incident, even if the first has ended. */
const TOGETHER_S = 300;

const order = (alert: Alert) => FIRST.indexOf(alert.kind);

/** What each failure policy does now, by rule. */
function policies(rules: Rules | null): string[] {
  const of = (policy: string) => (rules?.rules ?? []).filter((rule) => rule.on_store_failure === policy && rule.coordination !== 'local' && rule.mode !== 'shadow').map((rule) => rule.name);
  const named = (names: string[]) => (names.length > 3 ? `${names.slice(0, 3).join(', ')} and ${names.length - 3} more` : names.join(', '));
  const [open, closed, local] = [of('open'), of('closed'), of('local')];
  return [
    ...(open.length ? [`${plural(open.length, 'rule')} open, requests pass uncounted: ${named(open)}`] : []),
    ...(closed.length ? [`${plural(closed.length, 'rule')} closed, requests are refused: ${named(closed)}`] : []),
    ...(local.length ? [`${plural(local.length, 'rule')} on each node's share: ${named(local)}`] : []),
    open.length + closed.length + local.length < (rules?.rules.length ?? 0) ? 'The other rules and this console keep working.' : 'This console keeps working.',
  ];
}

/** Kinds whose subject is the node that they are of. */
const OF_A_NODE = ['fallback', 'overload', 'node_overload', 'store_slow', 'spent_evicted', 'reload_failed', 'publish_failed'];
/** Kinds whose subject is a part of the store: which nodes miss it, their health says. */
const OF_THE_STORE = ['store_down', 'breaker_open'];

/** How many nodes alerts are of. By fields alone: a node may have the name of any word. */
function affectedNodes(alerts: Alert[], nodes: Nodes | null): number {
  const subjects = new Set(alerts.filter((alert) => OF_A_NODE.includes(alert.kind)).map((alert) => alert.subject));
  const store = alerts.some((alert) => OF_THE_STORE.includes(alert.kind) && alert.ended_s === null);
  return (nodes?.nodes ?? []).filter((node) => subjects.has(node.name) || (store && !node.lost && !!node.health && node.health !== 'healthy')).length;
}

function made(alerts: Alert[], nodes: Nodes | null, rules: Rules | null): Incident {
  const byWeight = [...alerts].sort((a, b) => order(a) - order(b) || RANK[a.severity] - RANK[b.severity]);
  const first = byWeight.find((alert) => alert.ended_s === null) ?? byWeight[0]!;
  // What other nodes see is unknown while they are: then how many it is on is, too.
  const size = nodes?.nodes.some((node) => node.unknown) ? 0 : (nodes?.nodes.length ?? 0);
  const touched = affectedNodes(alerts, nodes);
  const title = TITLES[first.kind] ?? `${kindInWords(first.kind)}: ${first.summary}`;
  const down = alerts.some((alert) => ['store_down', 'breaker_open', 'fallback', 'overload'].includes(alert.kind) && alert.ended_s === null);
  return {
    id: alerts.map((alert) => alert.fingerprint).sort()[0]! + Math.min(...alerts.map((alert) => alert.since_s)),
    severity: [...alerts].sort((a, b) => RANK[a.severity] - RANK[b.severity])[0]!.severity,
    title: TITLES[first.kind] && touched && size > 1 ? `${title} on ${touched} of ${size} nodes` : title,
    since_s: Math.min(...alerts.map((alert) => alert.since_s)),
    ended_s: alerts.some((alert) => alert.ended_s === null) ? null : Math.max(...alerts.map((alert) => alert.ended_s!)),
    affected: first.incident === 'store' && down ? policies(rules) : [],
    next: first.next,
    alerts: byWeight,
  };
}

/** The incidents behind these alerts, active ones and the worst first. */
export function incidentsOf(alerts: Alert[], nodes: Nodes | null, rules: Rules | null): Incident[] {
  const groups: { cause: string; alerts: Alert[]; from: number; to: number }[] = [];
  for (const alert of [...alerts].sort((a, b) => a.since_s - b.since_s)) {
    const [cause, end] = [alert.incident, alert.ended_s ?? Infinity];
    const same = [...groups].reverse().find((group) => group.cause === cause && alert.since_s <= group.to + TOGETHER_S);
    if (same) {
      same.alerts.push(alert);
      same.to = Math.max(same.to, end);
    } else groups.push({ cause, alerts: [alert], from: alert.since_s, to: end });
  }
  const found = groups.map((group) => made(group.alerts, nodes, rules));
  return found.sort((a, b) => Number(a.ended_s !== null) - Number(b.ended_s !== null) || RANK[a.severity] - RANK[b.severity] || b.since_s - a.since_s);
}
