# frozen_string_literal: true

module MailAppliance
  VERSION = "1.1.0"
end
