// In charge of the one word for a message: what its recipients make of it.

/** One that waits after a try is told from one that is new, and one that bounced from one that failed. */
export function standing(message) {
  if (message.status === "queued" && message.recipients.some((each) => each.status === "deferred")) return "deferred";
  if (message.status === "failed" && message.recipients.every((each) => each.status === "bounced")) return "bounced";
  return message.status;
}
