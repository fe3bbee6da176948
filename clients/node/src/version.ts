/** The version of this package; a test holds it equal to package.json and to clients/VERSION. */
export const VERSION = "1.2.0";
