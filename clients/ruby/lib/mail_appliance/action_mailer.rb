# frozen_string_literal: true

require "socket"
require_relative "../mail_appliance" unless defined?(MailAppliance::Client) # which requires this file under Rails

module MailAppliance
  # Delivers messages of the mail gem, and so of ActionMailer, through the appliance's HTTP interface.
  #
  #   config.action_mailer.delivery_method = :mail_appliance
  #   config.action_mailer.mail_appliance_settings = { url: "https://mail.example.com", token: "…" }
  #
  # The settings are the arguments of Client.new, or +client+, a Client. The message's Idempotency-Key header is the
  # key; its headers X-Service-Tag, X-Service-Metadata and X-Service-Scheduled-At have tags, metadata and time. Whatever the interface cannot carry is a ConfigurationError that names
  # it; nothing is left out.
  class DeliveryMethod
    MOST_CLIENTS = 16

    @clients = {}
    @lock = Mutex.new

    # The mail gem makes a DeliveryMethod for each message; those with equal settings share a client.
    def self.client(settings)
      @lock.synchronize do
        @clients.shift if @clients.size >= MOST_CLIENTS && !@clients.key?(settings)
        @clients[settings] ||= Client.new(settings[:url], **settings.reject { |name,| name == :url })
      end
    end

    attr_accessor :settings

    # The SendResult of the last delivery: mail.delivery_method.result.id
    attr_reader :result

    def initialize(settings)
      @settings = settings
    end

    def deliver!(mail)
      fields = MailReader.new(mail).fields
      client = settings[:client] || self.class.client(settings.to_h.transform_keys(&:to_sym))
      @result = client.send_email(**fields)
    end
  end

  # Internal. Reads a Mail::Message into the arguments of Client#send_email.
  class MailReader
    # Fields that are read by name, or that belong to the MIME form, which the appliance generates.
    READ = %w[
      from to cc bcc reply-to subject date message-id mime-version content-type content-transfer-encoding
      idempotency-key x-service-tag x-service-metadata x-service-scheduled-at
    ].freeze
    # Those that the interface keeps for itself.
    RESERVED = /\A(?:sender|return-path|received.*|delivered-to|errors-to|dkim-signature|domainkey-signature|arc-.*|
                 authentication-results|resent-.*|tls-required|x-originating-ip|x-service-.*|content-.*)\z/xi
    READ_OF_PART = %w[
      content-type content-transfer-encoding content-disposition content-id mime-version date message-id
    ].freeze
    CONTAINERS = %w[multipart/mixed multipart/alternative multipart/related].freeze
    UNCHANGED = %w[7bit 8bit binary].freeze
    DATE_TOLERANCE = 3600 # seconds; the mail gem makes a Date, too, and one within these is taken for its own

    def initialize(mail)
      @mail = mail
      @bodies = {}
      @files = []
    end

    # A refusal names what cannot be carried.
    def fields
      check_envelope
      check_made_fields
      read_part(@mail)
      files = attachments
      {
        from: single(:from), to: addresses(:to), cc: addresses(:cc), bcc: addresses(:bcc), reply_to: single(:reply_to),
        subject: @mail.subject, text: @bodies["text/plain"], html: @bodies["text/html"], headers: custom_headers,
        tags: header("X-Service-Tag")&.split(/\s*,\s*/), attachments: files,
        scheduled_at: header("X-Service-Scheduled-At"), metadata: metadata, idempotency_key: header("Idempotency-Key")
      }
    end

    private

    def refuse(what)
      raise ConfigurationError, "#{what}: the mail appliance's interface cannot carry this"
    end

    def check_envelope
      refuse("a message without To") if addresses(:to).nil?
      to = Array(@mail.smtp_envelope_to)
      refuse("an envelope recipient other than To, Cc and Bcc") if to.map(&:downcase).sort != destinations
      refuse("an envelope sender other than From") if @mail.smtp_envelope_from != @mail.from_addrs.first
    end

    def destinations
      @mail.destinations.map(&:downcase).sort
    end

    def check_made_fields
      id = @mail.message_id
      refuse("Message-ID <#{id}>") if id && !made?(id)
      date = @mail.date
      refuse("Date #{date}") if date && (date.to_time - Time.now).abs > DATE_TOLERANCE
    end

    # Whether the mail gem has made this Message-ID or Content-ID.
    def made?(id)
      id.end_with?("@#{Socket.gethostname}.mail")
    end

    def addresses(name)
      field = @mail[name]
      return if field.nil? || field.addrs.empty?

      refuse("a group in #{field.name}") if field.addrs.any?(&:group)
      field.addrs.map(&:format)
    end

    def single(name)
      found = addresses(name)
      refuse("#{found.size} addresses in #{@mail[name].name}") if found && found.size > 1
      found&.first
    end

    # The values of all fields of this name.
    def values(name)
      found = @mail.header.fields.select { |field| field.name.casecmp?(name) }
      # The mail gem would join an Array.
      found.flat_map { |field| field.unparsed_value.is_a?(Array) ? field.unparsed_value : field.decoded.strip }
    end

    # The value of a field that may be there once.
    def header(name)
      found = values(name)
      refuse("#{found.size} fields #{name}") if found.size > 1
      found.first
    end

    # The entries of all fields X-Service-Metadata.
    def metadata
      pairs = values("X-Service-Metadata").map do |value|
        refuse("X-Service-Metadata without key=value") unless value.include?("=")
        value.split("=", 2).map(&:strip)
      end
      refuse("a key of X-Service-Metadata twice") if pairs.map(&:first).uniq!
      pairs.to_h unless pairs.empty?
    end

    def custom_headers
      names = @mail.header.fields.map(&:name).reject { |name| READ.include?(name.downcase) }
      names.each { |name| refuse("the field #{name}") if name.match?(RESERVED) }
      names.to_h { |name| [name, header(name)] } unless names.empty?
    end

    # +container+ is the type of the part that it is in.
    def read_part(part, container = nil)
      if part.multipart?
        refuse(part.mime_type) unless CONTAINERS.include?(part.mime_type)
        part.parts.each { |each| check_part(each) && read_part(each, part.mime_type) }
      elsif part.attachment? || part.content_disposition.to_s.match?(/\Aattachment/i)
        refuse("a file as an alternative (#{part.mime_type})") if container == "multipart/alternative"
        @files << part
      else
        read_body(part)
      end
    end

    def check_part(part)
      other = part.header.fields.map(&:name).find { |name| !READ_OF_PART.include?(name.downcase) }
      other ? refuse("the field #{other} of a part") : true
    end

    def read_body(part)
      type = part.mime_type || "text/plain" # RFC 2045 5.2
      refuse("a part of type #{type} without a file name") unless %w[text/plain text/html].include?(type)
      refuse("a second part of type #{type}") if @bodies.key?(type)
      parameter = (part.content_type_parameters || {}).keys.map(&:downcase).find { |name| name != "charset" }
      refuse("the parameter #{parameter} of #{type}") if parameter
      @bodies[type] = part.decoded.gsub("\r\n", "\n")
    end

    def attachments
      @files.map.with_index(1) { |part, number| attachment(part, number) } unless @files.empty?
    end

    def attachment(part, number)
      refuse("an attachment without a file name") if part.filename.to_s.empty?
      Attachment.from_bytes(bytes(part), filename: part.filename, content_type: content_type(part),
                                         content_id: content_id(part, number))
    end

    # Without the name, which is the attachment's file name.
    def content_type(part)
      parameters = (part.content_type_parameters || {}).reject { |name,| %w[name filename].include?(name.downcase) }
      [part.mime_type, *parameters.map { |name, value| "#{name}=#{quoted(value)}" }].join("; ") if part.mime_type
    end

    def quoted(value)
      value.match?(/\A[\w!#$%&'*+.^`|~-]+\z/) ? value : "\"#{value}\""
    end

    # The mail gem makes a Content-ID for every attachment; it matters for those that the HTML shows. As it is another
    # one each time, it is replaced: a message that is made again has to be equal, or its key would be a conflict.
    def content_id(part, number)
      html = @bodies["text/html"]
      id = part.content_id.to_s.delete("<>")
      return if id.empty? || !(part.content_disposition.to_s.match?(/\Ainline/i) || html&.include?("cid:#{id}"))
      return id unless made?(id)

      "inline#{number}@mail-appliance".tap { |lasting| html&.gsub!("cid:#{id}", "cid:#{lasting}") }
    end

    # The mail gem would turn the line ends of text into LF.
    def bytes(part)
      UNCHANGED.include?(part.body.encoding.to_s.downcase) ? part.body.raw_source : part.body.decoded
    end
  end

  if defined?(ActiveSupport.on_load)
    # Before the initializers of a Rails application, so that ActionMailer's own finds mail_appliance_settings.
    ActiveSupport.on_load(:action_mailer) { add_delivery_method(:mail_appliance, DeliveryMethod) }
  end
end
