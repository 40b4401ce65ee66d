// Alerts in words, and as marks in charts.

import type { Incident } from './incidents';
import type { Alert, Mark, Version } from './types';

export const kindInWords = (kind: string) => {
  const words = kind.replaceAll('_', ' ');
  return words.charAt(0).toUpperCase() + words.slice(1);
};

/** Kinds that are about a rule: their subject is its domain and name. */
const OF_A_RULE = /^(traffic_|refusal_|new_top_caller|spread_caller|shadow_would|key_card)/;

/** Where in this dashboard an alert is looked into. */
export function alertPlace(alert: Pick<Alert, 'kind' | 'subject' | 'page'>): string {
  if (alert.page) return `#${alert.page}`;
  // One that a node of an earlier release reported has no page; its kind says whose it is.
  const [domain, ...rule] = alert.subject.split('/');
  if (OF_A_RULE.test(alert.kind) && domain && rule.length) return `#/rules/${encodeURIComponent(domain)}/${encodeURIComponent(rule.join('/'))}`;
  return OF_A_RULE.test(alert.kind) || alert.kind === 'reload_failed' ? '#/rules' : '#/cluster';
}

/** What the page behind an alert is called. */
export function alertPlaceName(alert: Alert): string {
  const place = alertPlace(alert);
  if (place === '#/rules') return 'Open rules';
  const page = /^#\/(\w+)/.exec(place)?.[1] ?? '';
  return { rules: 'Open rule', top: 'Open rule', keys: 'Open caller', stores: 'Open cluster', nodes: 'Open cluster', cluster: 'Open cluster' }[page] ?? 'Open';
}

/** What happened in a range: versions, and one mark for each incident. What is only worth knowing is no mark. */
export function marksOf(versions: Version[] | undefined, incidents: Incident[]): Mark[] {
  const published = (versions ?? []).map((version) => ({
    at: new Date(version.at).getTime() / 1000,
    label: `v${version.number}`,
    text: `published by ${version.author}: ${version.reason || 'no reason given'}`,
    colour: '--accent',
  }));
  const fired = incidents
    .filter((incident) => incident.severity !== 'info')
    .map((incident) => ({
      at: incident.since_s,
      label: incident.title.replace(/ on \d+ of \d+ nodes$/, ''),
      text: incident.ended_s ? `resolved after ${incident.ended_s - incident.since_s} s` : 'active',
      colour: incident.severity === 'critical' ? '--refused' : '--fallback',
    }));
  return [...published, ...fired];
}
