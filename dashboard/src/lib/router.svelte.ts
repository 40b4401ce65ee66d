// Where the reader is: a path and parameters after `#`, so that a link in a chat shows the same thing. Nothing after
// `#` reaches the server or its log.

export interface Place {
  path: string[];
  parameters: URLSearchParams;
}

/** A name in a link that somebody wrote by hand may have a `%` that begins nothing: then it means itself. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function read(): Place {
  const [path = '', parameters = ''] = location.hash.replace(/^#\/?/, '').split('?', 2);
  return {
    path: path.split('/').filter(Boolean).map(decoded),
    parameters: new URLSearchParams(parameters),
  };
}

const current = $state({ place: read() });
addEventListener('hashchange', () => (current.place = read()));

export const place = () => current.place;

export function link(path: string[], parameters: Record<string, string | null | undefined> = {}): string {
  const set = Object.entries(parameters).filter((pair): pair is [string, string] => !!pair[1]);
  const text = new URLSearchParams(set).toString();
  return '#/' + path.map(encodeURIComponent).join('/') + (text ? `?${text}` : '');
}

export function go(path: string[], parameters: Record<string, string | null | undefined> = {}) {
  location.hash = link(path, parameters);
}

/** Changes parameters of this page without a step in the browser's history. */
export function set(parameters: Record<string, string | null | undefined>) {
  const merged = Object.fromEntries(current.place.parameters);
  const target = link(current.place.path, { ...merged, ...parameters });
  history.replaceState(null, '', target);
  current.place = read();
}
