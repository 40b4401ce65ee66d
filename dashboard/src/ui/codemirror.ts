// CodeMirror, set up for rule documents. Loaded only where an editor is shown.

import { autocompletion, completionKeymap, type Completion, type CompletionContext } from '@codemirror/autocomplete';
import { defaultKeymap, history, historyKeymap, indentWithTab } from '@codemirror/commands';
import { yaml } from '@codemirror/lang-yaml';
import { HighlightStyle, indentUnit, syntaxHighlighting } from '@codemirror/language';
import { lintGutter, setDiagnostics } from '@codemirror/lint';
import { Annotation, EditorState } from '@codemirror/state';
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from '@codemirror/view';
import { tags } from '@lezer/highlight';
import type { Diagnostic } from '../lib/types';

export interface EditorHandle {
  setText(text: string): void;
  setDiagnostics(diagnostics: Diagnostic[]): void;
  goTo(line: number, column: number): void;
  destroy(): void;
}

const FromOutside = Annotation.define<boolean>();

const colours = HighlightStyle.define([
  { tag: tags.propertyName, color: 'var(--accent)' },
  { tag: tags.definition(tags.propertyName), color: 'var(--accent)' },
  { tag: tags.comment, color: 'var(--muted)', fontStyle: 'italic' },
  { tag: tags.string, color: 'var(--admitted)' },
  { tag: [tags.number, tags.bool, tags.null], color: 'var(--shadow)' },
  { tag: tags.invalid, color: 'var(--refused)' },
]);

const theme = EditorView.theme({
  '&': { backgroundColor: 'var(--surface)', color: 'var(--text)', fontSize: '13px', minHeight: '280px', maxHeight: '70vh' },
  '.cm-scroller': { fontFamily: 'var(--mono)', lineHeight: '1.55', overflow: 'auto' },
  '.cm-gutters': { backgroundColor: 'var(--background)', color: 'var(--muted)', border: 'none', borderRight: '1px solid var(--line)' },
  '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'var(--raised)' },
  '.cm-content': { caretColor: 'var(--text)' },
  '.cm-cursor': { borderLeftColor: 'var(--text)' },
  '&.cm-focused .cm-selectionBackground, .cm-selectionBackground': { backgroundColor: 'color-mix(in srgb, var(--accent) 25%, transparent) !important' },
  '.cm-tooltip': { backgroundColor: 'var(--surface)', color: 'var(--text)', border: '1px solid var(--line-strong)', borderRadius: '6px' },
  '.cm-tooltip-autocomplete ul li[aria-selected]': { backgroundColor: 'var(--accent)', color: 'var(--on-accent)' },
  '&.cm-focused': { outline: 'none' },
});

const FIELDS: [string, string][] = [
  ['domain', 'Whose rules these are; requests name it'],
  ['rules', 'The rules of this domain'],
  ['name', 'What metrics, headers and this dashboard call the rule'],
  ['description', 'What it is for'],
  ['owner', 'Whom to ask'],
  ['enabled', 'false: as if the rule were not there'],
  ['match', 'Which requests it counts: attributes and globs; none for all'],
  ['key', 'One counter per distinct value of these attributes; [] for one counter'],
  ['on_missing_key', 'skip | refuse'],
  ['limits', 'All are enforced: 100/minute, or { algorithm: …, … }'],
  ['algorithm', 'token_bucket | fixed_window | sliding_window | sliding_log | leaky_bucket | concurrency'],
  ['limit', 'Hits per window'],
  ['window', '1s 5m 1h 1d, or a calendar unit such as month'],
  ['rate', 'As 10/s'],
  ['burst', 'Hits at once'],
  ['min_interval', 'Least time between two requests'],
  ['max_delay', 'Longest wait in a leaky bucket'],
  ['ttl', 'When an abandoned lease ends'],
  ['tz', 'Time zone of a calendar window, as Europe/Paris'],
  ['tiers', 'Limits by an attribute: { on: plan, default: free, free: […] }'],
  ['key_overrides', 'Limits for single keys, until a moment'],
  ['overrides', 'Rules that do not count where this one matches'],
  ['shadow', 'true: counts, never refuses'],
  ['rollout', 'The part of keys it applies to, as 10%'],
  ['experiment', 'Other limits for part of the keys'],
  ['penalty', 'Once refused, refused for at least this long'],
  ['priority', 'P0 to P3, for load shedding'],
  ['coordination', 'exact | approximate | local'],
  ['on_store_failure', 'open | closed | local'],
  ['colocate', 'Keep the cells of this attribute on one node of a Redis Cluster'],
];
const completions: Completion[] = FIELDS.map(([label, detail]) => ({ label, info: detail, apply: `${label}: `, type: 'property' }));

function complete(context: CompletionContext) {
  const word = context.matchBefore(/[\w_]+/);
  const before = context.state.doc.lineAt(context.pos).text.slice(0, context.pos - context.state.doc.lineAt(context.pos).from);
  if ((!word && !context.explicit) || !/^[\s\-{,]*[\w_]*$|[{,]\s*[\w_]*$/.test(before)) return null;
  return { from: word?.from ?? context.pos, options: completions, validFor: /^[\w_]*$/ };
}

export function createEditor(root: ShadowRoot, options: { label: string; readonly: boolean; onchange: (text: string) => void }): EditorHandle {
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: '',
      extensions: [
        lineNumbers(),
        history(),
        drawSelection(),
        highlightActiveLine(),
        yaml(),
        indentUnit.of('  '),
        syntaxHighlighting(colours),
        lintGutter(),
        autocompletion({ override: [complete] }),
        keymap.of([...completionKeymap, ...defaultKeymap, ...historyKeymap, indentWithTab]),
        theme,
        // What cannot be typed into must still take the focus, to be scrolled from the keyboard.
        EditorView.contentAttributes.of({ 'aria-label': options.label, tabindex: '0' }),
        EditorState.readOnly.of(options.readonly),
        EditorView.editable.of(!options.readonly),
        EditorView.updateListener.of((update) => {
          const typed = update.transactions.some((one) => one.docChanged && !one.annotation(FromOutside));
          if (typed) options.onchange(update.state.doc.toString());
        }),
      ],
    }),
  });
  const position = (line: number, column: number) => {
    const at = view.state.doc.line(Math.min(Math.max(1, line), view.state.doc.lines));
    return Math.min(at.from + Math.max(0, column - 1), at.to);
  };
  return {
    setText(text) {
      if (text === view.state.doc.toString()) return;
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text }, annotations: FromOutside.of(true) });
    },
    setDiagnostics(diagnostics) {
      const marks = diagnostics.map((one) => {
        const from = position(one.line, one.column);
        const to = Math.max(from, view.state.doc.lineAt(from).to);
        return { from, to, severity: one.severity, message: one.hint ? `${one.message}\n${one.hint}` : one.message };
      });
      view.dispatch(setDiagnostics(view.state, marks));
    },
    goTo(line, column) {
      const at = position(line, column);
      view.dispatch({ selection: { anchor: at }, effects: EditorView.scrollIntoView(at, { y: 'center' }) });
      view.focus();
    },
    destroy: () => view.destroy(),
  };
}
