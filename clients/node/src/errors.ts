/**
 * The errors of the library. All derive from MailApplianceError and carry the idempotency key of the send that failed,
 * so that a caller can send again with the same key and not send twice.
 */

import type { Message } from "./models.js";

/** The fields that an error may carry in addition to its message. */
export interface ErrorDetails {
  readonly idempotencyKey?: string | null | undefined;
  readonly cause?: unknown;
}

/** The base class of every error that this library throws. */
export class MailApplianceError extends Error {
  /** The key of the send; null when the failed call was not a send. */
  readonly idempotencyKey: string | null;

  constructor(message: string, { idempotencyKey, cause }: ErrorDetails = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.idempotencyKey = idempotencyKey ?? null;
  }
}

/** A mistake of the caller, found before any request. */
export class ConfigurationError extends MailApplianceError {}

/** No whole answer came: refused, reset, lost, timed out, or an untrusted certificate. `cause` is what fetch threw. */
export class ConnectionFailed extends MailApplianceError {}

/** A webhook that must not be trusted. */
export class SignatureInvalid extends MailApplianceError {}

/** `wait` ended before the message was final. */
export class WaitTimeout extends MailApplianceError {
  /** The message as it was seen last. */
  readonly lastMessage: Message;

  constructor(message: string, lastMessage: Message) {
    super(message);
    this.lastMessage = lastMessage;
  }
}

/** What an ApiError was made from. */
export interface ApiErrorDetails extends ErrorDetails {
  readonly status: number;
  readonly code: string | null;
  readonly requestId: string | null;
  readonly retryAfter: number | null;
}

/** An answer that is not a success. Its class is ApiError itself when the code is unknown or missing. */
export class ApiError extends MailApplianceError {
  /** The HTTP status. */
  readonly status: number;
  /** The code of the error object; null when the answer was none, for example a proxy's page. */
  readonly code: string | null;
  readonly requestId: string | null;
  /** Seconds by the Retry-After header; null without one that can be read. */
  readonly retryAfter: number | null;

  constructor(message: string, details: ApiErrorDetails) {
    super(message, details);
    this.status = details.status;
    this.code = details.code;
    this.requestId = details.requestId;
    this.retryAfter = details.retryAfter;
  }
}

/** The server has no such route: it is older than this call. Other calls still work. */
export class NotSupported extends ApiError {}

export class InvalidRequest extends ApiError {}
export class Unauthorized extends ApiError {}
export class Forbidden extends ApiError {}
export class NotFound extends ApiError {}
export class Conflict extends ApiError {}
export class InsufficientCredits extends ApiError {}
export class RateLimited extends ApiError {}
export class WarmupLimited extends ApiError {}
export class AccountSuspended extends ApiError {}
export class PayloadTooLarge extends ApiError {}
export class ServiceUnavailable extends ApiError {}
export class TemporaryFailure extends ApiError {}
export class InternalError extends ApiError {}
export class IdempotencyConflict extends ApiError {}
export class IdempotencyInProgress extends ApiError {}

/** The class of each code of the interface. */
const CLASSES = {
  invalid_request: InvalidRequest,
  unauthorized: Unauthorized,
  forbidden: Forbidden,
  not_found: NotFound,
  conflict: Conflict,
  insufficient_credits: InsufficientCredits,
  rate_limited: RateLimited,
  warmup_limited: WarmupLimited,
  account_suspended: AccountSuspended,
  payload_too_large: PayloadTooLarge,
  service_unavailable: ServiceUnavailable,
  temporary_failure: TemporaryFailure,
  internal_error: InternalError,
  idempotency_conflict: IdempotencyConflict,
  idempotency_in_progress: IdempotencyInProgress,
} as const;

/** A code of the interface. */
export type ErrorCode = keyof typeof CLASSES;

/** The error of the class that belongs to the code. */
export function apiError(message: string, details: ApiErrorDetails): ApiError {
  const known = details.code !== null && Object.hasOwn(CLASSES, details.code);
  return new (known ? CLASSES[details.code as ErrorCode] : ApiError)(message, details);
}
