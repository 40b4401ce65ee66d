// Alerts in words, and as marks in charts.

import type { Alert, Alerts, Mark, Version } from './types';

export const kindInWords = (kind: string) => {
  const words = kind.replaceAll('_', ' ');
  return words.charAt(0).toUpperCase() + words.slice(1);
};

/** Where in this dashboard an alert is looked into: where its link leads that others are told, whatever stands before the page. */
export function alertPlace(alert: Alert): string {
  return alert.link.slice(alert.link.indexOf('#'));
}

/** What happened in a range: versions, breakers that opened, alerts. */
export function marksOf(versions: Version[] | undefined, alerts: Alerts | null): Mark[] {
  const published = (versions ?? []).map((version) => ({
    at: new Date(version.at).getTime() / 1000,
    label: `v${version.number}`,
    text: `published by ${version.author}: ${version.reason || 'no reason given'}`,
    colour: '--accent',
  }));
  const fired = [...(alerts?.active ?? []), ...(alerts?.resolved ?? [])].map((alert) => ({
    at: alert.since_s,
    label: alert.kind === 'breaker_open' ? 'breaker open' : alert.kind.replaceAll('_', ' '),
    text: `${alert.summary}${alert.ended_s ? ` (over after ${alert.ended_s - alert.since_s} s)` : ' (still so)'}`,
    colour: alert.severity === 'critical' ? '--refused' : '--fallback',
  }));
  return [...published, ...fired];
}
