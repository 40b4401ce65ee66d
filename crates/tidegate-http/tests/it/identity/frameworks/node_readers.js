// Prints what Express reads in each line of stdin: {"cookie": ...} or {"query": ...}. Text stands for bytes.
const path = require("node:path");
const readline = require("node:readline");

const modules = process.argv[2];
const load = (name) => require(path.join(modules, name));
const [cookie, qs] = [load("cookie"), load("qs")];

const scalar = (value) => {
  while (value !== null && typeof value === "object") value = Object.values(value)[0];
  return value === undefined ? null : value;
};

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const asked = JSON.parse(line);
  const read =
    asked.cookie !== undefined
      ? cookie.parse(asked.cookie).sid
      : asked.query !== undefined
        ? qs.parse(asked.query, { allowPrototypes: true }).token
        : null;
  console.log(JSON.stringify({ express: scalar(read) }));
});
