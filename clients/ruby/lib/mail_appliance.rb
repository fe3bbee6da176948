# frozen_string_literal: true

require_relative "mail_appliance/version"
require_relative "mail_appliance/errors"
require_relative "mail_appliance/models"
require_relative "mail_appliance/request"
require_relative "mail_appliance/plan"
require_relative "mail_appliance/transport"
require_relative "mail_appliance/client"
require_relative "mail_appliance/webhook"
require_relative "mail_appliance/action_mailer" if defined?(Rails::Railtie)

# The client of the mail appliance: Client sends mail and reads its status, MailAppliance.verify checks webhooks.
module MailAppliance
end
