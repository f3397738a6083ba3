// Parses an AsyncAPI document and prints, as JSON, what the parser says about it and what it found in it.
import { Parser, fromFile } from "@asyncapi/parser";

const parser = new Parser();
const { document, diagnostics } = await fromFile(parser, process.argv[2]).parse();
const severities = ["error", "warning", "information", "hint"];

console.log(JSON.stringify({
  diagnostics: diagnostics.map(({ code, message, path, severity }) => ({
    severity: severities[severity], code, message, path: path.join("."),
  })),
  channels: document?.channels().all().map((channel) => ({
    id: channel.id(),
    address: channel.address(),
    messages: channel.messages().all().map((message) => ({
      name: message.name(),
      contentType: message.contentType(),
      required: message.payload()?.required() ?? [],
      headers: Object.keys(message.headers()?.properties() ?? {}),
      examples: message.examples().all().length,
    })),
  })) ?? [],
  operations: document?.operations().all().map((operation) => `${operation.action()} ${operation.channels().all()[0].id()}`) ?? [],
}));
