/** The ES module face of testing.ts. */
export * from "./testing.js";
