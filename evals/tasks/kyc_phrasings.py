"""What the kinds of `kyc` documents say, in the languages they come in.

In a table a line is `key = seen | seen … || unseen | unseen`: phrasings of train, dev and test, then those kept for the
split `unseen_templates`. The order of the fields is their order in the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Phrasings = tuple[tuple[str, ...], tuple[str, ...]]  # those of train, dev and test; those of `unseen_templates`


@dataclass(frozen=True)
class Kind:
    """One kind of document: `fields` are asked for, in this order; `decoys` are not."""

    headings: Phrasings
    fields: Mapping[str, Phrasings]
    decoys: Mapping[str, Phrasings]
    layouts: tuple[str, ...]  # what stands between two statements


def _phrasings(text: str) -> Phrasings:
    seen, unseen = (tuple(part.strip() for part in side.split("|")) for side in text.split("||"))
    return seen, unseen


def _table(text: str) -> dict[str, Phrasings]:
    lines = (line.split("=", 1) for line in text.strip().splitlines())
    return {key.strip(): _phrasings(phrasings) for key, phrasings in lines}


_BEARER = """
surname     = Surname: {} | Surname/Nom {} | Name: {} | Familienname {} | Cognome: {} || Nachname {} | Last name: {}
given       = Given names: {} | Prénoms {} | Vornamen: {} | Given name/Prénom {} || First name: {} | Nombre {}
number      = No. {} | Document no. {} | Ausweis-Nr. {} | No du document: {} || Number {} | Documento n. {}
born        = Date of birth: {} | Geburtsdatum {} | Né(e) le {} | Data di nascita: {} || Geboren am {} | Birth date {}
expires     = Date of expiry: {} | Gültig bis {} | Expires {} | Scadenza: {} || Valid until {} | Ablaufdatum: {}
nationality = Nationality: {} | Staatsangehörigkeit {} | Nationalité: {} | Cittadinanza {} || Citizenship: {} | Stato {}
sex         = Sex: {} | Sexe {} | Geschlecht: {} | Sesso {} || Gender: {} | Sexo {}
birthplace  = Place of birth: {} | Geburtsort {} | Lieu de naissance: {} | Luogo di nascita {} || Birthplace: {}
issued      = Date of issue: {} | Ausgestellt am {} | Délivré(e) le {} | Issued on {} || Issue date: {} | Rilasciato {}
authority   = Authority: {} | Behörde {} | Autorité: {} | Issued by {} || Issuing office: {} | Ente {}
"""
_BEARER_DECOYS = """
replaced = Replaces {} | Previous no. {} | Ersetzt {} || Former document {} | Old no. {}
printed  = Printed {} | Application of {} | Antrag vom {} || Produced on {} | Applied {}
officer  = Signed by {} | Officer: {} | Für die Behörde {} || Clerk: {} | Le préfet {}
guardian = Parent: {} | Spouse {} | In emergency: {} || Next of kin: {} | Notify {}
"""

KINDS = {
    "identity_card": Kind(
        _phrasings("IDENTITY CARD | PERSONALAUSWEIS | CARTE D'IDENTITÉ | ID card || CARTA D'IDENTITÀ | National ID"),
        _table(_BEARER),
        _table(_BEARER_DECOYS),
        ("\n", " | ", "; "),
    ),
    "passport": Kind(
        _phrasings("PASSPORT | REISEPASS | PASSEPORT | Passport/Passeport || PASSAPORTO | Travel document"),
        _table(_BEARER),
        _table(_BEARER_DECOYS),
        ("\n", " | ", "; "),
    ),
    "utility_bill": Kind(
        _phrasings("Electricity bill | Water bill | RECHNUNG | Facture d'eau || Gas invoice | Bolletta della luce"),
        _table("""
name     = Customer: {} | Kunde {} | Client: {} | Bill to {} || Invoiced to {} | Titulaire {}
street   = Address: {} | Adresse {} | Supply address {} | Straße: {} || Premises: {} | Anschrift {}
postcode = Postcode {} | PLZ: {} | Code postal {} | ZIP {} || Postal code {} | CAP: {}
city     = Town: {} | Ort {} | Ville: {} | City {} || Municipality {} | Localité: {}
account  = Account no. {} | Kundennummer: {} | No client {} | Customer no. {} || Account: {} | Vertragskonto {}
amount   = Amount due {} | Total: {} | Zu zahlen {} | Please pay {} || To pay: {} | Rechnungsbetrag {}
due      = Pay by {} | Fällig am {} | Due: {} | À payer avant le {} || Zahlbar bis {} | Payment date {}
supplier = Supplier: {} | Versorger {} | Fournisseur: {} | Your supplier is {} || Provided by {} | Netz: {}
issued   = Bill date {} | Rechnungsdatum: {} | Date de facture {} | Issued {} || Invoice date: {} | Datum {}
usage    = Usage {} kWh | Verbrauch: {} kWh | Consommation {} kWh || Used: {} kWh | Metered {} kWh
"""),
        _table("""
replaced = Meter {} | Zähler {} | Compteur: {} || Meter no. {} | Zählernummer {}
printed  = Next reading {} | Ablesung am {} | Last bill of {} || Read on {} | Relevé du {}
paid     = Last bill {} | Thank you for {} | Abschlag: {} || Paid: {} | Acompte {}
officer  = Contact: {} | Your adviser {} | Sachbearbeiter {} || Questions: {} | Conseiller {}
"""),
        ("\n", " | ", "; "),
    ),
    "email": Kind(
        _phrasings(
            "Subject: Opening an account | Hello, I would like an account. | Dear team, please open an account for me."
            " || Subject: New customer | Good morning, here are my details."
        ),
        _table("""
name     = My name is {} | I am {} | This is {} writing | Name: {} || I am called {} | You may call me {}
born     = I was born on {} | Date of birth {} | My birthday is {} || My date of birth: {} | I came into the world on {}
id       = My passport number is {} | Passport: {} | My ID is {} || My identity card is {} | Passport no. {}
city     = I live in {} | My home is in {} | I am based in {} | Town: {} || I reside in {} | I have moved to {}
job      = I work as a {} | I am a {} by trade | Job: {} || By profession I am a {} | My job: {}
income   = I earn {} a month | Net income {} | My salary is {} || Each month I am paid {} | Monthly pay {}
phone    = Call me on {} | Phone {} | My number is {} | Tel. {} || Mobile: {} | Ring {}
country  = I am a citizen of {} | Nationality {} | I come from {} || My nationality: {} | I hold the citizenship of {}
email    = Mail me at {} | E-mail {} | Reach me at {} || Write to {} | Inbox: {}
employer = I am employed by {} | Employer: {} | I work for {} || My employer is {} | I am on the payroll of {}
"""),
        _table("""
replaced = My old passport was {} | Expired ID: {} | Booking {} || Cancelled passport {} | Voucher {}
printed  = I can come by on {} | Free on {} | We met on {} || I have time on {} | We spoke on {}
paid     = My rent is {} | Rent: {} | I would pay in {} || I pay {} in rent | First deposit {}
officer  = Cc: {} | {} sent me | My spouse is {} || {} told me about you | Regards to {}
"""),
        ("\n", "\n- ", "; "),
    ),
}
