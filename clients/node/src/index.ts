/** Client library of the mail appliance: `MailAppliance` sends email and reads its status, `verify` checks webhooks. */

export { MailAppliance, type BatchOptions, type CallOptions, type SendOptions, type WaitOptions } from "./client.js";
export type { MailApplianceOptions } from "./configuration.js";
export {
  AccountSuspended,
  ApiError,
  ConfigurationError,
  Conflict,
  ConnectionFailed,
  Forbidden,
  IdempotencyConflict,
  IdempotencyInProgress,
  InsufficientCredits,
  InternalError,
  InvalidRequest,
  MailApplianceError,
  NotFound,
  NotSupported,
  PayloadTooLarge,
  RateLimited,
  ServiceUnavailable,
  SignatureInvalid,
  TemporaryFailure,
  Unauthorized,
  WaitTimeout,
  WarmupLimited,
  type ApiErrorDetails,
  type ErrorCode,
  type ErrorDetails,
} from "./errors.js";
export type {
  Address,
  Attachment,
  AttachmentInfo,
  BatchItem,
  BatchResult,
  BillingStatus,
  CheckResult,
  ContentAttachment,
  Email,
  EventData,
  EventType,
  FileAttachment,
  Message,
  MessageStatus,
  ReceivedEmail,
  ReceivedFile,
  Recipient,
  RecipientStatus,
  SendResult,
  Source,
  WebStream,
  WebhookEvent,
} from "./models.js";
export type { Fetch, FetchBody, FetchInit, FetchResponse } from "./transport.js";
export { VERSION } from "./version.js";
export { verify, type VerifyOptions } from "./webhooks.js";
