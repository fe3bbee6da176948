/** The ES module face of nodemailer.ts. */
export * from "./nodemailer.js";
