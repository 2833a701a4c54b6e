"""Values that fill the generated documents, and which split may use which of them.

Names of people and places were drawn once from the locale lists of faker (MIT licence), so that a data set does not
change with that library's version. Every list is in NFC.
"""

from __future__ import annotations

from functools import cache
from zlib import crc32


def _words(text: str) -> list[str]:
    return text.split()


FIRST_NAMES = _words("""
Aage Achim Ada Adela Adrian Adriana Adrienne Ailis Aivar Aivars Aleksander Alen Alena Alessandra Alexander Alexandra
Alexandre Alica Alina Allan Alma Almast Almudena Amelia Amleto Ana Anastázie Andrej Andres Andrešs Ane Anemona Anette
Angelita Anghelina Anka Annija Anssi Antoin Anton Antonija Antonio Antons António Anže Arielė Aronas Asbjørn Ashley
Attila Audrius Augustina Aurore Barbara Barbora Barica Barnabás Bart Benjamín Benjámin Benoît Bent Bente Beray Bernard
Bibiána Birger Botond Božica Breda Brigitta Brigitte Bror Brunilda Bruno Bryan Bálint Bárbara Carita Carola Carolina
Carsten Cathrine Cemil Charles Charlotte Chelsey Cherith Claudia Clive Clémence Constanze Corina Coriolano Cornelio
Custodio Dan Dana Daniel Danilo Danny Danuta Darko Denis Denise Dina Domas Dominyka Dora Doroteja Dorothée Dragica
Eamon Edita Edvīns Eetu Eija Eleanor Ellen Elliot Elmo Elmārs Elna Else Elvis Emil Emilio Emily Emmanuel Endre Enzo
Erik Espen Ester Etela Etta Eva Evija Fabia Fanni Fedor Fehim Filipa Finn Fito Fran Frederico Gatis Gemma Gențiana
Gerald Gizella Gordana Greco Gregory Grēta Gunhild Gunārs Gyöngyi Görgünay Günden Habibe Hana Hanim Hanna Hasan
Hedvika Henrietta Henrik Henry Herbert Hermanni Hugo Ianis Ilarion Ilie Ilija Ilmari Ilona Ilse Imants Imelda Inaya
Ineta Inta Ion Irene Irma Isa Isaura Iulian Ivana Ivo Iván Jacob Jannis Jarlath Jayden Jeannine Jekaterina Jenni Jeppe
Jesse Joana Joaquim Johan Jolanda Jovita Joyce João Jožefa Julia Julius Juraj Jázmin Jürgen Kaarina Karel Karen
Karlijn Karolina Katja Katriina Katrīna Katy Kayrabay Kelly Kenny Kjell Klara Klaudia Klaudie Klement Kristi Kristin
Kristiāna Kévim Ladislau Ladislav Lara Laura Lena Lennarth Leonora Leopold Letícia Liana Lindsey Liv Lizzy Ljudmila
Lorenzo Lorraine Lotti Lourenço Luboš Luca Luciano Lucie Luke Lydia Macario Macs Madeleine Maie Maja Manuela Marcel
Margherita Margit Mari Marianne Marie Marijana Marius Marta Martin Mason Mateus Mathijs Mattias Maud Maya Mecit Meelis
Megan Melissa Mengüç Merel Mervi Micha Michaela Michèle Mihhail Milan Miriam Miroslav Miroslaw Mirte Mladen Mona
Mufide Muvahhide Mária Márk Mátyás Mădălin Nadežda Nastja Natalija Natasha Nathan Nela Neringa Niccolò Nicodemo Nicole
Nika Niklas Nikola Nina Noman Nürice Octavia Ole Oleg Olivia Oscar Oskár Osmo Patrik Paulina Pavel Pelle Peter Petra
Petras Philipp Pia Piret Priit Päivi Rachel Radmila Radovan Raivo Rasa Rebecca Reda Regina Regitze Reinis Reino
Rembrandt Renata Renée Rezzak Riina Rita Ričards Robert Rolando Roman Romana Romolo Rosendo Roza Rudolf Rui Ruxanda
Rózsa Rūta Sally Samuel Samuli Sargın Saskia Seamus Sean Seanan Seaneen Selena Serafina Seyyide Sibille Signe Sigrid
Siim Silva Simion Simona Sine Sini Slobodan Sofija Sol Sonny Sorin Soňa Stacey Stanislav Stefania Stella Stephanie
Steven Stilla Stojan Susanne Sven Svetlana Synnøve Tadas Tadeáš Tamara Tania Tatiana Tautvydas Teresa Terézia Theo
Thijs Thor Thorben Tiit Tijmen Timo Timothy Tine Tobias Toby Tom Tomas Tonje Tore Tove Tracy Trevor Tristan Tuulia
Urmas Uta Vagn Valentina Valeri Valérie Vanessa Vecide Venceslás Veronika Vicenta Vilde Vilius Vincent Vincenza
Vincenzo Viola Viļums Vratko Vítězslav Willy Winfried Xavier Yaiza Yasmine Yağızkurt Yekda Yelesen Yousef Yusuf Zdeněk
Zenovia Zenta Ziedonis Zora Álvaro Ângela Åke Émile Éric Øjvind Đuro Štefanija Željka Živilė
""")

SURNAMES = _words("""
Aaltonen Aanei Aas Ababei Abdi Abrahamsen Adams Adamson Aguilar Ahlqvist Ahmadi Akar Akelis Akgündüz Aksu Akça Akçay
Alanko Albu Alemdar Almeida Alves Amanović Amaral Ambrasas Amorim Amundsen Andersen Andre Andreotti Andreozzi Andresen
Andrews Angulo Anissimov Anjos Annus Antalová Antonsen Antunes Apine Apinis Apsīte Apsītis Araújo Archer Ardelean
Arent Ariosto Arnesen Arslan Arsoy Aslan Asmundo Atkins Auer Aune Auniņa Austin Avotiņš Azevedo Babič Bach Backlund
Bakken Bakos Bale Balla Balode Baltiņš Balázs Baptista Baquero Baranov Baranová Barbier Barbu Barkholz Barna Barre
Barros Barry Barta Bartoš Batista Bech Bednárik Bellucci Benitez Benthin Berengario Berenguer Berg Berger Bernier
Berntsen Bertelsen Bertilsson Beránková Bevc Bezjak Bilge Bilgin Bilir Birkeland Birtić Birzniece Björkman Blanchard
Blatnik Blažič Blin Blokland Blot Blum Bláhová Boaga Boetet Bognár Bohnbach Boljkovac Borja Boros Borošak Borromeo
Borroni Božiković Bragadin Branco Brandt Bray Bresse Brito Brlek Brumleve Bruun Bruynzeels Bruška Buchberger Budai
Bunić Burns Butcher Butković Butkus Bálint Bárta Bártová Bäckman Bílková Bøe Bērziņa Cabo Caffarelli Canova Cappelli
Cardoso Carli Carlsen Carlsson Carneiro Carnera Carriera Carrigan Carro Carvalho Casanova Catalán Celmiņš Chacón
Chauvet Chen Christensen Christoph Chrodtrud Clausen Clinton Coates Coelho Coello Colley Collier Collin Cook Cormy
Correia Cossiga Costa Couturier Cranley Cristea Cruz Csonka Culloty Cunha Cunnane Cunningham Cuomo Cutuli Cánovas
Cīrule Dahlgren Dale Daly Danielsen Davey David Davids Davoren Dawson Delannoy Delle Delmas Demir Demirel Denis
Dermott Diaconescu Diaconu Diesbergen Dietz Dijoux Dima Dinu Ditschlerin Dobre Dochioiu Doglioni Dolinar Domingues
Dominiković Doménech Donaire Doorhof Draaisma Drum Drysdale Dudová Dudás Duhamel Dumanlı Dumitrescu Dunworth Dupont
Dupuy Durdu Durmuş Dušek Dušková Dvořák Dvořáková Dzene Dzenis Dörschner Echeverría Edman Eelman Eftimie Eide Eisl
Ellingsen Elliott Emanuelli Ene Engel Eraslan Erdoğan Ergül Eriksen Erkkilä Erlandsson Ertaş Eterović Everde Fabian
Fabianová Fagerström Fahy Faivre Faragó Faria Farrell Fehér Fekete Fenning Ferran Ferreira Ferrández Filippov
Filípeková Fischer Fletcher Flink Florea Fonseca Forslund Forsman Fox Foà Frandsen Frank Franušić Fredriksen Frerichs
Friis Fuster Fuček Fábián Fülöp Fürst Fırat Gaffney Gagys Gailius Gaillard Gailys Gaičiūnas Gaižauskas Galdikas Galik
Galiková Galić Galligan Gannon Gardner Garozzo Gartlan Gaspar Gaudin Geertsen Geiger Geisel Gelli Gemen George
Georgescu Gheorghiu Gibbs Gilbane Giménez Gintalas Ginzburgas Giolitti Giradello Girschner Glynn Goddard Gomes
Gonzalez Goodwin Gorenc Gotić Gough Govarts Goñi Grande Gratzer Gray Grba Gregorio Grey Grinius Gritsch Gronskis Gross
Gruber Gruijl Gröttner Grünberger Guerreiro Guijarro Guillaume Guinizzelli Gulan Gulbrandsen Gulyás Gundersen Gál
Gáspár Gómez Gül Gülen Güçlü Haapaniemi Haas Hagen Hagendoorn Hahn Hakker Hall Halonen Halvorsen Halász Hamel Hannula
Hansen Hanson Hanssen Hançer Hartikainen Hartmann Haslinger Hauffer Hawthorn Hayrioğlu Hecker Hegedüs Heinsoo Heinz
Hekker Henderson Henriksen Henriksson Henriques Hermansen Herrmann Hlaváčik Hoarau Hoban Hodžić Holappa Holm Holmberg
Holmgren Holmqvist Holst Holsten Holub Holubeková Hoogers Hopkins Horak Horváth Hozjan Hočevar Hranić Hrovat Hršak
Hrženjak Hubmann Huemer Huhtala Hulst Hupka Huter Höglinger Ilić Ingvarsson Ionescu Ioniță Iversen Jacob Jacobsen
Jagarinec Jakobsen Jakobson Jakovljević Jakuš Jakúbeková Jamnik Jandová Janečková Jankauskas Janssens Janček Jarošová
Jaunzems Jelínek Jelínková Jensen Jenssen Jepsen Jereb Jespersen Jesus Ježek Ježková Jimenez Johann Johannessen
Johansen Johnsen Jonsson Jordan Joseph Jovanović Jović Juhkam Juhász Jurinová Jurčina Jurčić Jäntsch Järvenpää Jónás
Jørgensen Kaasik Kaindl Kairys Kalamees Kalniņš Kalvaitis Kalvelis Kalvėnas Kalēja Karadeniz Karlsen Karpov Kasemets
Kaupas Kaur Kazlauskas Kaņepa Kaņeps Kašparová Kealey Kendrová Kennelly Kerr Keskitalo Ketola Kettunen Khan Kiil
Kilawee Kilroe Király Kiviniemi Kiška Kjær Klapáč Klausen Klausner Klemenčič Klimko Klocker Knez Knudsen Knutsen Koch
Kocjančič Kocsis Kogler Koitla Kokalj Kolarič Kolega Kolenc Kolářová Kopecká Korol Korpela Kort Kortelainen Korutürk
Kosonen Kosten Kostková Kotnik Koval Kovaľ Kovács Košir Kramer Krantz Kranz Krastiņa Krastiņš Kratochvíl Kremer
Kremser Krieva Krieviņš Krievs Kristensen Kristensson Kristiansen Krivec Krogh Kropilák Kruschwitz Krížik Krūmiņa
Krūze Kudrjavtsev Kugler Kuhl Kumer Kuningas Kuusela Kučera Kučerová Kuščević Kyllönen Kärner Köberl Kölbl Köster
Kārkliņa Kısakürek Kříž Laakkonen Laaksonen Lachmann Lacroix Lagzdiņa Lagzdiņš Lahiffe Laiho Lakošeljac Lampinen
Lankle Lappalainen Larkin Larrañaga Larsen Larsson Lass Lauritsen Lavan Lazar Leban Lebar Lecoq Lees Lefebvre Legnante
Lehmann Leibetseder Leite Lejeune Lelijveld Lenz Lepšíková Lerch Leroy Lesage Leskinen Letta Leutgeb Liber Liblik
Lidén Lien Liepa Liepiņa Lieshout Liivamägi Lillemets Lind Lindau Linde Lindfors Ljung Lobo Logar Loiseau Lokk Loorits
Lopez Lorch Loureiro Lourenço Lukács Lund Lunde Lundell Lundström Luukkonen Luzi László Lääne Lõhmus Lönn Līce MacAdoo
MacVeigh Macedo Mach Machado Madara Madden Madsen Mahe Maher Maia Majcen Malachovský Mallet Malpighi Malá Manole
Mansız Mantegna Manço Marchand Marcinek Marek Marešová Marin Marinković Markovič Markovičová Marková Marolt Marron
Martens Martin Martins Martinsen Martinson Martić Martová Marttila Maréchal Maslová Mate Mathiasen Mathiesen Mathisen
Matias Matoušková Maurice Mayol Mazilescu Mašek McFall McGeown McGinty McGuinn McKee McKillop McRoarty Meier Meister
Meić Mende Mendes Mens Mercier Metcalfe Mets Michalicová Michel Middelkoop Mies Mihelič Millet Miltenburg Miskell
Mistrík Mitteregger Mišíková Mlinar Mocanu Mohammed Moles Moll Molnár Monaghan Monteiro Moore Moran Moreira Morel
Morellato Moreno Morin Mortensen Moslavac Mrak Mraović Mude Muhonen Muller Murray Musil Musilová Mustonen Muti Myhre
Myklebust Máté Mäkelä Mäkinen Mészáros Møller Müller Nagele Nagl Nagys Narušis Nascimento Naujokas Nausėda Nemeș
Neuzerling Nicolas Nicolucci Nicolás Nielsen Nilsen Nilsson Nissen Nistor Nitti Nižnanský Niță Nohlmans Nordberg
Nordlander Nordqvist Norling Norman Normand North Novák Nunes Nunne Nurm Nurminen Nygård Nylander Nylund Nálepka Næss
Németh Nõmmik Nöbauer Němcová Němečková Obšutová Ochoa Oderwald Oikarinen Olesen Olsen Oláh Ondrúšeková Oprea Orbán
Orosz Orsós Ostinelli Ottosson Otčenáš Paal Paas Paavilainen Pacheco Paffrath Paniagua Papp Parent Parkkinen Parts
Parzer Pasanen Pascal Passchiers Pataki Patberg Patton Paulauskas Paulsen Pavin Pavičić Pavliček Pavlíková Pechel
Pedersen Peer Pekkarinen Peralta Peranda Pereira Peruško Pesonen Petersen Petralli Petrauskas Petrová Peñas Pfeffer
Pieper Pigafetta Piir Pina Pinedo Pinheiro Pinho Pino Pintarič Pinto Pintér Pires Piña Pla Planas Plaza Plešivcová
Pocius Podniece Podnieks Poirier Pokorny Pollard Poole Pop Popa Popescu Popović Porter Posada Pospíšilová Povilonis
Poška Prada Preda Prelec Prial Priedīte Priedītis Procházka Pukluš Pulkkinen Puriņš Purmale Purmals Puška Pușcașu
Péter Pērkona Quasimodo Quinn Quinney Raadik Raag Raamat Rabl Radinović Radisch Radošević Rajh Rakuljić Ramos
Rasmussen Rauhala Ravn Rebane Reichel Reinbacher Reinhardt Reinikainen Renault Rendulić Rhodes Ribeiro Riekstiņa
Riihimäki Ring Rinner Ritoša Rivera Rivière Rocha Rocher Roda Roden Rodrigues Rodríguez Rogner Romagnoli Romančík
Román Roosileht Rosemann Rossi Roth Rozīte Rožman Rubene Rubík Rudkins Ruijs Ruiz Ruppert Rácz Räisänen Rønning
Růžičková Sakalauskas Sakarya Saleh Salet Salumets Sam Sandberg Sanders Sandgren Sandström Sandvik Sans Sanz Sarabia
Sarapuu Sauer Saulīte Schakelaar Schatz Scheuermann Schmidt Schmied Scholten Schou Schreiner Schubert Schweitzer
Sedlar Sedláčková Seip Sekera Semenov Seppälä Seppänen Sestig Seven Sever Sezer Sezgin Sharp Shaughnessy Sheilds
Shepherd Sild Siliņš Simic Simon Simonsen Simpson Sims Simson Simões Sirén Sivertsen Sjödin Sjöstedt Skuja Skujiņš
Smirnoff Smolić Smreková Sobrino Soini Solana Solberg Solheim Somogyi Soos Soosaar Sorgatz Sotelo Sousa Soylu
Spallanzani Sproģe Sproģis Stan Stancu Starčević Steele Steen Steffensen Steinböck Steinmeiern Stiebitz Stoiber Stoica
Stoll Stopar Strazdiņa Strazdiņš Strobl Strøm Stuart Stumpf Stupalo Sturm Stănescu Suciu Sulg Sulzer Sušnik Svendsen
Swift Szilágyi Székely Szücs Szőke Szűcs Sándor Sárközi Söderström Sørensen Sýkorová Tabacu Takács Tamme Tammik Tamsma
Tanguy Tarhan Tavares Teixeira Tevetoğlu Thies Thorsen Thorén Thygesen Tikkanen Timofejev Tintzmann Toft Togliatti
Toivonen Toma Tomaníková Tomažič Tomescu Tomáš Toplak Torrent Totić Trutanić Tudor Turiņš Turpeinen Tveit Tõnisson
Türk Tůma Ubaldi Uittenbosch Uotila Urbonas Uus Vahter Valente Valentová Vallet Varga Vastenhouw Velderman Veltroni
Veres Veselý Vestergaard Vezzali Vial Vicente Vidmar Vidoni Vigliotti Viitanen Vikström Viljanen Vincze Viviani Vlnová
Vodopivec Voinea Voisin Volk Volta Vranić Vsiliauskas Vukman Váradi Vávrová Vähi Vítková Vörös Vīksna Wahlström Wall
Walter Watkins Weihmann Weinberger Weiß Wells Wester Whitehead Wiberg Wieloch Wilkins Williams Winters Wolters Yaman
Yates Yorulmaz Young Yüksel Yıldırım Yılmaz Zaal Zacharová Zajc Zakrajšek Zalokar Zamengo Zapata Zeldenrust Zeltiņa
Zemanová Zengin Zetterberg Ziemelis Zima Zorko Zorlu Zorman Zupan Zupančič Zänker Zālītis Åberg Çamurcuoğlu Çetin
Çorlu Öcalan Öhman Östman Ødegård Ülker Ābola Āboliņš Ćosić Čargonja Čech Čeh Čermák Čermáková Čuček Ďurkovičová
İhsanoğlu İnönü Şafak Şama Şener Şensoy Šalajková Šegović Šimić Šimko Šimo Šimunić Šinković Škantár Šmídová Štefan
Štěpánek Štěpánková Šťastná Šťastný Žagar Žibert Žnidaršič Žukauskas Žuravljov Žák
""")

CITIES = _words("""
Aars Abbega Abrantes Afumati Agnita Ahaus Ajdovščina Akaa Alcobaça Alingsås Almada Almind Alès Amara Amarante
Amstetten Angers Ankara Anklam Arriën Aue Babeni Baden Baicoi Barcelos Bari Bath Belfast Bentveld Bergen Besançon
Beugen Bilbao Bingelrade Bitterfeld Bodø Bologna Borger Borlänge Borohrádek Borová Borre Borås Boťany Brabrand Brad
Brande Bregenz Breskens Brest Breznica Brežice Bristol Brno Budapest Burgos Bursa Béziers Cajvana Cantanhede Cardiff
Celje Cerknica Cernavoda Chropyně Como Cork Cres Cádiz Córdoba Cēsis Dabuleni Darabani Darmanesti Darmstadt Debrecen
Delnice Derby Dijon Dobroslava Dover Dragu-Brad Drammen Dravograd Dublin Dundee Děčín Eckernförde Eger Eggenburg
Einbeck Eisenerz Eisenstadt Eldersloo Enns Ens Erm Ermesinde Eskilstuna Esmoriz Esposende Estremoz Exeter Faaborg
Falun Farsø Feldru Felgueiras Firenze Fjerritslev Forlì Freamunde Funchal Gaanderen Galten Galway Garešnica Genova
Geras Gijón Gilau Ginnum Girona Glasgow Gmünd Gotha Graz Grein Grosuplje Guarda Guben Győr Gävle Göteborg Gørløse Haag
Hailuoto Haler Hamar Hannover Hardegg Hartmanice Hateg Havířov Hejnsvig Helsingborg Henne Herlufmagle Honkajoki
Hoogeveen Houwerzijl Hronec Hubice Huesca Huijbergen Huisduinen Husum Hvar Hvidovre Hyvinkää Hôrky Iasi Imotski Imst
Ineu Innsbruck Izola Jaklovce Jankovce Javorník Jaén Jelgava Jelšovec Jena Jesenice Jevíčko Jihlava Jyväskylä
Jönköping Jülich Kalmar Kameničná Kamnik Karlskoga Karolinka Kastav Kaunas Kemnath Kiarov Kindberg Klagenfurt Klaipėda
Klasov Knin Kobarid Konya Koper Koprivnica Korneuburg Kostolište Kotešová Kronach Kruisland Kryry Krško Kufstein
Kumlinge Kuzmice Kötzting København Lagoa Landeck Landskrona Langenlois Larvik Lecce Leeds Leiria Lepoglava León
Liberec Lichtenfels Lidingö Lidköping Lieto Lilienfeld Lille Limerick Lipové Lippstadt Litija Lišov Ljutomer Lleida
Logatec Logroño Lom London Loures Lucca Ludbreg Lugo Lumparland Lund Lučenec Lyon Látky Lübeck Maalahti Madrid Maia
Malmö Mangalia Mank Maribor Marslev Marttila Matera Matosinhos Mattersburg Maurik Mealhada Medias Medvode Merijärvi
Metković Metz Milano Milsbeek Mirandela Miskolc Modelu Modena Moers Mogosoaia Molde Montijo Motala Moura Murau Murcia
Mužla Málaga Mâcon Mårslet Mölndal Mühlhausen Nakkila Nancy Nantes Narva Narvik Nedašovce Neulengbach Neustrelitz Nexø
Nibe Nice Nieuw-Roden Nin Nousiainen Novska Nurmijärvi Nîmes Nørreballe Odry Oldelamer Oldemarkt Opava Orahovica
Oripää Orléans Oroslavje Oslo Otok Otopeni Oudesluis Ovar Oviedo Oxford Pacov Padova Pakrac Paredes Paris Parma
Pascani Paskov Pazin Petrinja Petäjävesi Pieksämäki Pietarsaari Pilníkov Pinhel Pinneberg Piran Pisa Pitesti Piteå
Pleternica Plánice Popovača Portalegre Postojna Poysdorf Počátky Požega Pravotice Prenzlau Prevalje Pritzwalk Pukanec
Pyhäjärvi Pärnu Pécs Púchov Přerov Rab Radenthein Radovljica Rantasalmi Rasinari Rasnov Rattenberg Regensburg Reims
Rejštejn Rennes Retz Ribnica Riesa Riga Rijeka Ringkøbing Roma Roman Rouen Rudná Rudolstadt Ruše Ryslinge Rääkkylä
Rødkærsbro Rømø Rønne Sacavém Samsun Samsø Sandviken Saveni Savitaipale Savukoski Schleiz Schokland Schwechat Seixal
Semily Senj Sevilla Sevnica Siena Sihelné Silves Sisak Skellefteå Skovlunde Skövde Sligo Slovany Slunj Smørum Soběslav
Sodankylä Soini Solin Sopron Sottunga Split Stockholm Stupné Sundsvall Suonenjoki Supetar Sysmä Szeged Säkylä
Södertälje Tallinn Targoviste Tartu Tavira Techirghiol Teplá Terndrup Ternitz Tjele Toledo Tolmin Tomar Torgau Torino
Tours Tovačov Trabzon Traun Trbovlje Trebnje Trebušovce Trelleborg Tricht Trieste Trmice Trollhättan Tromsø Turda
Turnišče Udine Ulstrup Umag Umeå Urlati Uurainen Valbom Vallensbæk Varaždin Varberg Veenhuizen Veflinge Vejle Velenje
Velešín Verneřice Verona Veteli Victoria Vilnius Vimpeli Vipava Vlieland Voluntari Voorschoten Vyškovce Västerås Växjö
Vöcklabruck Vöyri Výsluní Waarland Wanzleben Wesel Wiedenbrück Wijchen Wolgast Workum Wouw York Ypäjä Zamora Zlatar
Zuna Ávila Ängelholm Ålesund Évreux Ílhavo Örebro Östersund Černochov Čirč Čičava Čukalovce Đakovo İzmir Šlapanice
Šoštanj Štvrtok Švihov Žalec Železniki Žiri
""")

COUNTRIES = _words("""
Albania Austria Belgium Bulgaria Canada Chile Croatia Cyprus Denmark Estonia Finland France Germany Greece Hungary
Iceland India Ireland Italy Japan Kenya Latvia Lithuania Luxembourg Malta Mexico Moldova Morocco Norway Peru Poland
Portugal Romania Serbia Slovakia Slovenia Spain Sweden Switzerland Tunisia Turkey Uruguay Vietnam
""")

OCCUPATIONS = _words("""
baker barber bookbinder bookseller bricklayer builder butcher carpenter cashier chef chemist clockmaker cook courier
dancer dentist designer doctor driver farmer fisherman florist gardener geologist glazier goldsmith guide hairdresser
jeweller joiner journalist judge lawyer librarian locksmith machinist mason mechanic midwife miner musician notary
nurse painter pharmacist photographer physicist pilot plumber potter printer programmer roofer sailor sculptor
secretary shepherd shoemaker singer solicitor surgeon surveyor tailor teacher technician translator vet violinist
waiter watchmaker weaver welder writer zoologist
""")


@cache
def open_values(split: str) -> tuple[list[str], list[str]]:
    """(surnames, cities) that a split may use; no two of train, dev and test share one."""
    return values_for(SURNAMES, split), values_for(CITIES, split)


def values_for(pool: list[str], split: str) -> list[str]:
    """The part of an open-ended pool that a split may use: 80 % train, 10 % dev, 10 % every other split, no overlap."""
    return [value for value in pool if _owner(value) == (split if split in ("train", "dev") else "test")]


def _owner(value: str) -> str:
    # A checksum of the value itself: adding a name to a pool moves no other name to another split.
    return {0: "dev", 1: "test"}.get(crc32(value.encode("utf-8")) % 10, "train")
