# frozen_string_literal: true

require "time"

module MailAppliance
  # Reads a value object out of a JSON object: unknown fields are ignored, missing ones are nil, the result is frozen.
  module FromJSON
    def from_json(object, **more)
      fields = members.to_h { |name| [name, read(name, object[name.to_s])] }
      new(**fields, **more).freeze
    end

    private

    def read(name, value)
      case name
      when :recipients then list(Recipient, value)
      when :attachments then list(self == ReceivedEmail ? ReceivedFile : AttachmentInfo, value)
      when :results then list(BatchItem, value)
      when :created_at, :delivered_at, :bounced_at, :scheduled_at then time(value)
      else value.freeze
      end
    end

    def list(type, values)
      values.grep(Hash).map { |each| type.from_json(each) }.freeze if values.is_a?(Array)
    end

    def time(value)
      Time.iso8601(value).freeze if value.is_a?(String)
    rescue ArgumentError
      nil
    end
  end
  private_constant :FromJSON

  # A file to send, as bytes. With a +content_id+ it is an inline image, `<img src="cid:…">` in the HTML.
  Attachment = Struct.new(:filename, :bytes, :content_type, :content_id, keyword_init: true) do
    def self.from_bytes(bytes, filename:, content_type: nil, content_id: nil)
      new(filename: filename, bytes: bytes.b.freeze, content_type: content_type, content_id: content_id).freeze
    end

    # Reads the file now; its name is the last part of the path unless given.
    def self.from_path(path, filename: File.basename(path), **options)
      from_bytes(File.binread(path), filename: filename, **options)
    rescue SystemCallError => error
      raise ConfigurationError, "the attachment cannot be read: #{error.message}"
    end

    # Reads the stream now, from where it stands to its end. It should have been opened in binary mode.
    def self.from_io(io, filename:, **options)
      from_bytes(io.read, filename: filename, **options)
    end

    # The bytes of a large file do not belong into a log.
    def inspect
      "#<#{self.class} #{filename.inspect} (#{bytes.bytesize} bytes)>"
    end
    alias_method :to_s, :inspect
  end

  # What the appliance says of an attachment that it accepted.
  AttachmentInfo = Struct.new(:filename, :content_type, :size, :content_id, keyword_init: true) do
    extend FromJSON
  end

  # The answer to Client#send_email: the message was accepted and is queued, not yet delivered.
  # +replayed+: an earlier request with this key was accepted already, and this is its answer again.
  SendResult = Struct.new(
    :id, :status, :source, :request_id, :from, :to, :cc, :bcc, :reply_to, :subject, :billing_status,
    :recipient_count, :credits_reserved, :headers, :tags, :attachments, :scheduled_at, :idempotency_key, :replayed,
    keyword_init: true
  ) do
    extend FromJSON

    alias_method :replayed?, :replayed
  end

  # The result of one message of a batch: +id+ if it was accepted, else +error+ and +code+.
  BatchItem = Struct.new(
    :index, :id, :status, :recipient_count, :credits_reserved, :error, :code,
    keyword_init: true
  ) do
    extend FromJSON
  end

  # The answer to Client#send_batch, with one BatchItem per message, in order.
  BatchResult = Struct.new(
    :results, :accepted, :refused, :request_id, :idempotency_key, :replayed,
    keyword_init: true
  ) do
    extend FromJSON

    alias_method :replayed?, :replayed
  end

  # One recipient of a Message. Its status is scheduled, queued, deferred, delivered, bounced or failed; times are Time objects or nil.
  Recipient = Struct.new(
    :id, :email, :status, :billing_status, :attempt_count, :last_smtp_code, :last_smtp_response,
    :delivered_at, :bounced_at,
    keyword_init: true
  ) do
    extend FromJSON
  end

  # The state of a message, as Client#get and Client#wait return it.
  Message = Struct.new(
    :id, :status, :source, :from, :subject, :billing_status, :recipient_count, :credits_reserved, :created_at,
    :request_id, :recipients, :scheduled_at, :metadata,
    keyword_init: true
  ) do
    extend FromJSON

    # Whether every recipient has reached its result.
    def final?
      %w[delivered partial failed].include?(status)
    end
  end

  # A file attached to a ReceivedEmail. Its +url+ is valid for an hour from the event.
  ReceivedFile = Struct.new(:number, :filename, :content_type, :size, :url, keyword_init: true) do
    extend FromJSON
  end

  # An email that the appliance received. Trust +from+ only if +dmarc+ is "pass". Do not answer one that is
  # +auto_submitted+. +envelope+, +headers+ and +in_reply_to_email+ are Hashes, or Arrays of them, as the event has them.
  ReceivedEmail = Struct.new(
    :inbound_id, :envelope, :from, :to, :cc, :reply_to, :subject, :text, :html, :headers, :message_id, :in_reply_to,
    :in_reply_to_email, :attachments, :spf, :dkim, :dmarc, :size, :raw_url, :truncated, :auto_submitted,
    keyword_init: true
  ) do
    extend FromJSON

    def self.from_json(object)
      super({ "truncated" => false, "auto_submitted" => false, **object })
    end

    alias_method :truncated?, :truncated
    alias_method :auto_submitted?, :auto_submitted
  end

  # A verified webhook event. +data+ is a frozen Hash with the fields that were there, by symbols; +received+ is the
  # ReceivedEmail of "email.received", else nil.
  Event = Struct.new(:id, :type, :created_at, :data, :received, keyword_init: true) do
    extend FromJSON
  end
end
