// The fields of a rule document for the editor's completion, from the schema that the compiler and other editors use: built with
// the dashboard, so that a field that the schema gains is offered.
import { readFileSync } from 'node:fs';

export const SCHEMA = new URL('../crates/tidegate-rules/src/rules.schema.json', import.meta.url);
const LONGEST = 100;
const MODULE = 'virtual:rule-fields';

/** Name and explanation of every field, those of a rule first. A name that means two things has both. */
export function ruleFields(schema) {
  const found = new Map();
  const target = (node) => (typeof node?.$ref === 'string' ? schema.$defs[node.$ref.split('/').pop()] : node);
  const values = (node) => target(node)?.enum ?? (node?.const ? [node.const] : []);
  const take = (node) => {
    for (const [name, field] of Object.entries(node?.properties ?? {})) {
      const known = found.get(name) ?? { texts: new Set(), values: new Set() };
      const text = field.description ?? target(field)?.description;
      // A limit's own `over` is explained as that of its rule is: once is enough.
      if (text && ![...known.texts].some((other) => other.slice(0, 40) === text.slice(0, 40))) known.texts.add(text);
      for (const value of values(field)) known.values.add(value);
      found.set(name, known);
    }
    for (const [key, child] of Object.entries(node ?? {})) {
      if (key === '$defs' || child === null || typeof child !== 'object') continue;
      if (key === 'properties') Object.values(child).forEach(take);
      else if (Array.isArray(child)) child.forEach(take);
      else take(child);
    }
  };
  take(schema.$defs.rule);
  take({ ...schema, $defs: undefined });
  Object.values(schema.$defs).forEach(take);
  return [...found].map(([name, { texts, values }]) => {
    const all = [...texts].join(' / ');
    // What does not fit beside a list of names is in the reference.
    const said = all.length > LONGEST ? all.slice(0, all.lastIndexOf('. ', LONGEST) + 1) || all : all;
    // An explanation that explains each value has them already.
    const listed = [...values].filter((value) => !said.includes(String(value))).length ? [...values].join(' | ') : '';
    return [name, [said, listed].filter(Boolean).join(' ')];
  });
}

export const ruleFieldsPlugin = {
  name: 'rule-fields',
  resolveId: (id) => (id === MODULE ? `\0${MODULE}` : null),
  load(id) {
    if (id !== `\0${MODULE}`) return null;
    this.addWatchFile?.(SCHEMA.pathname);
    return `export default ${JSON.stringify(ruleFields(JSON.parse(readFileSync(SCHEMA, 'utf8'))))};`;
  },
};
