/** The ES module face of index.ts. Both share one implementation, so that `instanceof` holds across import and require. */
export * from "./index.js";
