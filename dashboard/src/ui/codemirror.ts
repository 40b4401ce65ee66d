// CodeMirror, set up for rule documents. Loaded only where an editor is shown.

import { autocompletion, completionKeymap, type Completion, type CompletionContext } from '@codemirror/autocomplete';
import { defaultKeymap, history, historyKeymap, indentWithTab } from '@codemirror/commands';
import { yaml } from '@codemirror/lang-yaml';
import { HighlightStyle, indentUnit, syntaxHighlighting } from '@codemirror/language';
import { lintGutter, setDiagnostics } from '@codemirror/lint';
import { Annotation, EditorState } from '@codemirror/state';
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from '@codemirror/view';
import { tags } from '@lezer/highlight';
import fields from 'virtual:rule-fields';
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

const completions: Completion[] = fields.map(([label, detail]) => ({ label, info: detail, apply: `${label}: `, type: 'property' }));

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
