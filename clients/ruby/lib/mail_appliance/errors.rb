# frozen_string_literal: true

module MailAppliance
  # Every error of this library. A failed send shows the key that it used, so that the same send can safely be
  # repeated later with the same key.
  class Error < StandardError
    attr_reader :idempotency_key

    def initialize(message = nil, idempotency_key: nil)
      super(message)
      @idempotency_key = idempotency_key
    end
  end

  # A mistake of the caller, found before any request was made.
  class ConfigurationError < Error; end

  # No whole answer came: the connection was refused, reset or lost, timed out, or its certificate does not verify.
  # Whether the appliance accepted the message is unknown; #cause has the reason.
  class ConnectionFailed < Error; end

  # Client#wait ended before the message was final. #last_message is the message as it was seen last.
  class WaitTimeout < Error
    attr_reader :last_message

    def initialize(message = nil, last_message: nil)
      super(message)
      @last_message = last_message
    end
  end

  # A webhook that must not be trusted.
  class SignatureInvalid < Error; end

  # An answer that is not a success. A code of the interface has a subclass; an unknown one has this class.
  class ApiError < Error
    attr_reader :status, :code, :request_id, :retry_after

    def initialize(message = nil, status:, code: nil, request_id: nil, retry_after: nil, idempotency_key: nil)
      super(message, idempotency_key: idempotency_key)
      @status = status
      @code = code
      @request_id = request_id
      @retry_after = retry_after
    end
  end

  # The server has no such route: it is older than this call. Other calls still work.
  class NotSupported < ApiError
    BATCH_SINCE = "0.7" # version of the server that added batches, cancel and reschedule

    # The error of a call to +route+: NotSupported if it is an error object with one of the statuses +missing+, by which
    # an older server refuses the route.
    def self.or_same(error, route, *missing)
      return error unless error.code && missing.include?(error.status)

      new("the server does not have #{route}: it is older than version #{BATCH_SINCE}. Upgrade the server.",
          status: error.status, code: error.code, request_id: error.request_id, retry_after: error.retry_after,
          idempotency_key: error.idempotency_key)
    end
  end

  class InvalidRequest < ApiError; end
  class Unauthorized < ApiError; end
  class Forbidden < ApiError; end
  class NotFound < ApiError; end
  class Conflict < ApiError; end
  class InsufficientCredits < ApiError; end
  class RateLimited < ApiError; end
  class WarmupLimited < ApiError; end
  class AccountSuspended < ApiError; end
  class PayloadTooLarge < ApiError; end
  class ServiceUnavailable < ApiError; end
  class TemporaryFailure < ApiError; end
  class InternalError < ApiError; end
  class IdempotencyConflict < ApiError; end
  class IdempotencyInProgress < ApiError; end

  class ApiError
    # The class for each code of the interface.
    BY_CODE = {
      "invalid_request" => InvalidRequest,
      "unauthorized" => Unauthorized,
      "forbidden" => Forbidden,
      "not_found" => NotFound,
      "conflict" => Conflict,
      "insufficient_credits" => InsufficientCredits,
      "rate_limited" => RateLimited,
      "warmup_limited" => WarmupLimited,
      "account_suspended" => AccountSuspended,
      "payload_too_large" => PayloadTooLarge,
      "service_unavailable" => ServiceUnavailable,
      "temporary_failure" => TemporaryFailure,
      "internal_error" => InternalError,
      "idempotency_conflict" => IdempotencyConflict,
      "idempotency_in_progress" => IdempotencyInProgress
    }.freeze
  end
end
