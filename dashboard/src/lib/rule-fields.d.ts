// Made by rule-fields.js from the schema of rules, while the dashboard is built.
declare module 'virtual:rule-fields' {
  const fields: [name: string, explanation: string][];
  export default fields;
}
